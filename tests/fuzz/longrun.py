"""`python -m tests.fuzz --inputs 20000 --seed 0`: a long run in several processes, or one case with --replay."""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.fuzz.oracle import BLOCKED, Case, Outcome, judge

SILENT = 60.0 * BLOCKED + 30
"""Seconds without output after which a process is killed, because code outside Python may hang. No kind of input may
take longer by the clock."""


def cases(inputs: int, seed: int, only: list[str]) -> list[Case]:
    """Cases of all kinds by weight, numbered so that seeds do not share cases."""
    from tests.fuzz.kinds import KINDS

    chosen = [kind for kind in KINDS.values() if not only or kind.name in only]
    total = sum(kind.weight for kind in chosen)
    found = []
    for kind in chosen:
        share = max(1, round(inputs * kind.weight / total))
        found += [(index / share, Case(kind.name, seed * 10**9 + index)) for index in range(share)]
    return [case for _, case in sorted(found, key=lambda pair: pair[0])]


def work(given: list[Case], out: Connection) -> None:
    """Send each case before it is tried, and its outcome afterwards."""
    import torch

    torch.set_num_threads(1)
    from tests.fuzz.kinds import KINDS

    with tempfile.TemporaryDirectory(prefix="fuzz-") as base:
        tempfile.tempdir = base  # removed with this process
        for index, case in enumerate(given):
            out.send(index)
            out.send(judge(KINDS[case.kind], case, Path(base)))
    out.close()


class Worker:
    """A process with its share of the cases. If it hangs or dies, it is replaced and its case fails."""

    def __init__(self, given: list[Case]) -> None:
        self.left = deque(given)
        self.current: Case | None = None
        self.start()

    def start(self) -> None:
        self.pipe, theirs = mp.get_context("spawn").Pipe(duplex=False)
        self.process = mp.get_context("spawn").Process(target=work, args=(list(self.left), theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.heard = time.monotonic()

    def receive(self) -> Outcome | None:
        """The next outcome, if one was sent. Raises EOFError at the end."""
        told = self.pipe.recv()
        self.heard = time.monotonic()
        if isinstance(told, Outcome):
            self.left.popleft()
            self.current = None
            return told
        self.current = self.left[0]
        return None

    def replaced(self, why: str) -> Outcome | None:
        self.process.kill()
        self.process.join()
        if self.current is None:
            raise RuntimeError(f"a fuzzer process ended between two cases ({why})")
        lost = Outcome(self.left.popleft(), "failed", why, self.current.kind)
        self.current = None
        if self.left:
            self.start()
        return lost


def long_run(given: list[Case], processes: int) -> list[Outcome]:
    workers = [Worker(given[at::processes]) for at in range(processes) if given[at::processes]]
    found: list[Outcome] = []
    begun = shown = time.monotonic()
    while busy := [w for w in workers if w.left]:
        for pipe in wait([w.pipe for w in busy], timeout=5):
            worker = next(w for w in busy if w.pipe is pipe)
            try:
                outcome = worker.receive()
            except EOFError:
                worker.process.join(5)
                outcome = worker.replaced(f"the process died with code {worker.process.exitcode}")
            if outcome is not None:
                found.append(outcome)
                if outcome.verdict == "failed":
                    print(f"failed: {outcome.case}  {outcome.what[:150]}  [{outcome.where}]", flush=True)
        for worker in busy:
            if time.monotonic() - worker.heard > SILENT and (lost := worker.replaced("the process hangs")):
                found.append(lost)
                print(f"failed: {lost.case}  {lost.what}", flush=True)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{len(found)} of {len(given)} inputs in {shown - begun:.0f} s", file=sys.stderr, flush=True)
    return found


def report(found: list[Outcome], out: Path) -> str:
    """Print groups of failures, each with its shortest input and the command to replay it."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in found:
        if outcome.verdict == "failed":
            groups.setdefault(outcome.group, []).append(outcome)
    lines = []
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.json"):
        old.unlink()
    for number, (key, members) in enumerate(sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))), 1):
        first = min(members, key=lambda o: len(o.shown) or 10**6)
        (out / f"{number:03d}.json").write_text(json.dumps(asdict(first), indent=1))
        lines += [
            f"{number:3d}. {key[0]}: {first.what[:200]}  ({len(members)} times)",
            f"     input: {first.shown[:300]!r}",
            f"     replay: python -m tests.fuzz --replay {first.case}",
        ]
    return "\n".join(lines)


def replay(case: Case) -> int:
    from tests.fuzz.kinds import KINDS

    outcome = judge(KINDS[case.kind], case)
    print(f"{case}: {outcome.verdict}\ninput: {outcome.shown}\n{outcome.what}\n{outcome.detail}")
    return int(outcome.verdict == "failed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kind", action="append", default=[], help="Only this kind of input; may be repeated.")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="Folder for failures.")
    parser.add_argument("--replay", metavar="CASE", help="One case, as `method:17`, or the file of a failure.")
    given = parser.parse_args()
    if given.replay:
        file = Path(given.replay)
        return replay(Case(**json.loads(file.read_text())["case"]) if file.is_file() else Case.of(given.replay))
    begun = time.monotonic()
    found = long_run(cases(given.inputs, given.seed, given.kind), given.processes)
    if text := report(found, given.out):
        print(text)
    by_kind = Counter((o.case.kind, o.verdict) for o in found)
    for kind in sorted({kind for kind, _ in by_kind}):
        seconds = sum(o.seconds for o in found if o.case.kind == kind)
        counted = ", ".join(f"{v} {by_kind[kind, v]}" for v in ("ok", "refused", "failed"))
        print(f"{kind:18s} {counted}; {seconds:.0f} s")
    total = Counter(o.verdict for o in found)
    print(
        f"{len(found)} inputs in {time.monotonic() - begun:.0f} s: " + ", ".join(f"{n} {v}" for v, n in total.items())
    )
    return int(total["failed"] > 0)
