"""Time saved by `--prefix-cache`: the same questions and methods with and without it, alternating in one process."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from heal import VLM
from heal.bench.run.folder import Folder
from heal.bench.run.plan import Settings
from heal.bench.run.runner import run
from heal.bench.tasks.base import Task
from heal.bench.tasks.miniature import MiniChair, MiniPope
from heal.report.plans import equilibria
from heal.studies.comparison import published

METHODS = {"plain and the forms of HEAL": equilibria, "published defaults": published}


def seconds(vlm: VLM, task: Task, methods: dict, settings: Settings) -> tuple[float, dict]:
    """Duration of a whole run, and its answers."""
    with tempfile.TemporaryDirectory() as folder:
        path, start = Path(folder) / "run", time.perf_counter()
        run(vlm, {"task": task}, methods, path, settings)
        return time.perf_counter() - start, {key: r.text for key, r in Folder(path).records().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    vlm = VLM.embedded()
    print("| task | methods | ratio (lowest – highest of the rounds) | changed answers |\n|---|---|---|---|")
    for task in (MiniPope(count=given.samples), MiniChair(count=given.samples)):
        for name, methods in METHODS.items():
            ratios, other, total = [], 0, 0
            for _ in range(given.rounds):
                each, once = (
                    seconds(vlm, task, methods(), Settings(limit=given.samples, batch_size=64, prefix_cache=kind))
                    for kind in (False, True)
                )
                ratios.append(once[0] / each[0])
                other += sum(once[1][key] != text for key, text in each[1].items())
                total += len(each[1])
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
            print(f"| {task.name} | {len(methods())}: {name} | {spread} | {other} of {total} |", flush=True)


if __name__ == "__main__":
    main()
