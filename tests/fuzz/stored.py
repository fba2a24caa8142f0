"""Damaged stored files: run folders, traces, equilibria, judge replies."""

from __future__ import annotations

import atexit
import json
import math
import re
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from heal import HEAL, VLM
from heal.bench import create
from heal.bench.run.plan import Settings
from heal.bench.run.runner import run
from heal.bench.score.summary import Summary, rescore
from heal.json_values import json_values
from heal.methods.equilibrium import Equilibrium
from heal.trace import Trace
from heal.trace_parts import TracedImage, VisualSpan
from tests.fuzz import odd
from tests.fuzz.benchmarks import in_range
from tests.fuzz.oracle import Draw, check, is_amount
from tests.fuzz.strings import SCENES


@cache
def lasting() -> Path:
    """A folder for files that are created once per process."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-made-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@cache
def tiny() -> VLM:
    """A shared model. Copy it before changing it."""
    return VLM.random()


@cache
def finished_run() -> Path:
    folder = lasting() / "run"
    one: dict[str, Any] = {SCENES: 1}
    tasks = [create("mini-pope", **one, splits=("random",)), create("mini-chair", **one)]
    run(tiny(), tasks, [None, HEAL(alpha=0.6)], folder, Settings(max_new_tokens=2))
    return folder


@cache
def rows_before() -> str:
    return _told(rescore(finished_run()))


def _told(summary: Summary) -> str:
    return json.dumps(json_values(summary.scores()), sort_keys=True)


def runs(draw: Draw) -> None:
    """A damaged run is refused, reported as incomplete, or scored as before."""
    rows_before()
    folder = Path(shutil.copytree(finished_run(), draw.place / "run"))
    name = draw.choice(("run.json", "samples.jsonl", "records.jsonl", "records.jsonl"))
    path = folder / name
    lines = name.endswith("l")
    content = path.read_text()
    value: Any = [json.loads(line) for line in content.splitlines()] if lines else json.loads(content)
    if name == "run.json" and draw.often(0.7):
        value["configuration"], change, how = odd.mutate_json(draw, value["configuration"])
        mutated = odd.Mutated(odd.dump(value, False), change, f"configuration/{how}")
    else:
        mutated = odd.mutate_document(draw, value, lines)
    path.write_bytes(mutated.content)
    draw.show(f"{name}: {mutated.how}")
    summary = rescore(folder)
    for row in summary.rows:
        check(min(row.answered, row.failed, row.missing) >= 0, "a negative number of answers")
        in_range({k: v.value for k, v in row.figures.items()}, 100)
        for figure in row.figures.values():
            check(math.isnan(figure.low) or figure.low <= figure.high, "an interval that ends before it begins")
        known = is_amount(row.seconds) and is_amount(row.memory)
        check(known or not row.answered, f"{row.seconds!r} s and {row.memory!r} bytes")
    json.dumps(json_values(summary.scores()), allow_nan=False)
    fewer = re.fullmatch(r"configuration/methods/[^/]* deleted", mutated.how)
    if mutated.change == "structure" and not (summary.missing or summary.failed or fewer):
        check(_told(summary) == rows_before(), f"{name}: accepted with different figures")


# ── traces ────────────────────────────────────────────────────────────────────────────────────────────────


ANY_VALUE = re.compile("config|versions|text|tokens/|messages/|(prompt_tokens|visual_positions/0/2) became None$")
"""Changes of a trace that cannot be detected: tokens, texts, configurations, versions and messages may have any
value, the length of the prompt and the image of a span may be unknown."""


@cache
def trace_bytes() -> bytes:
    rng = np.random.default_rng(0)
    shape = (3, 2, 4)
    scores: dict[str, Any] = {
        n: rng.normal(size=shape).astype(np.float32)
        for n in ("visual", "language", "synergy", "total", "contribution", "beta", "gamma")
    }
    trace = Trace(
        **scores,
        types=rng.integers(0, 5, shape).astype(np.uint8),
        refreshed=np.array([True, False, False]),
        token_ids=np.arange(3),
        tokens=("a", "b", "c"),
        text="abc",
        config={"name": "heal"},
        seed=0,
        versions={"torch": "1"},
        logprobs=-rng.random(3).astype(np.float32),
        prompt="USER: <image>\nwhat is this ? ASSISTANT:",
        messages=({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is this ?"}]},),
        images=(TracedImage.of(Image.new("RGB", (40, 30), (9, 90, 200))),),
        visual_positions=(VisualSpan(3, 19, 0),),
        prompt_tokens=30,
    )  # fmt: skip
    trace.save(lasting() / "trace.safetensors")
    return (lasting() / "trace.safetensors").read_bytes()


def traces(draw: Draw) -> None:
    """A damaged trace is refused or loads as a usable trace."""
    content = trace_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    if draw.often(0.6):
        if draw.often(0.4):
            record, change, how = odd.mutate_json(draw, json.loads(header["__metadata__"]["record"]))
            header["__metadata__"]["record"] = json.dumps(record)
            change, how = "value" if ANY_VALUE.match(how) else change, f"record/{how}"
        else:
            header, change, how = odd.mutate_json(draw, header)
        raw = json.dumps(header).encode("utf-8", "surrogatepass")
        length = len(raw) if draw.often(0.9) else draw.choice((0, 1, 2**31, 2**63, len(raw) - 1, len(raw) + 1))
        mutated = odd.Mutated(struct.pack("<Q", length) + raw + body, change, how)
    else:
        mutated = odd.mutate_bytes(draw, content)
    path = draw.place / "t.safetensors"
    path.write_bytes(mutated.content)
    draw.show(mutated.how)
    found = Trace.load(path)
    share = found.alpha_vis[~np.isnan(found.alpha_vis)]
    check(bool(((share >= 0) & (share <= 1)).all()), "a visual share outside 0 to 1")
    check(len(found.tokens) == found.steps and len(found.mean_alpha()) == found.steps, "tokens and steps differ")
    check(len(found.to_dataframe()) == found.visual.size, "a table of the wrong size")
    found.save(draw.place / "again.safetensors")
    check(Trace.load(draw.place / "again.safetensors") == found, "saving and loading changes the trace")
    if mutated.change == "structure":
        path.write_bytes(content)
        check(found == Trace.load(path), "accepted as a different trace")


def equilibria(draw: Draw) -> None:
    path = draw.place / "equilibrium.json"
    good: dict[str, Any] = {
        "mean": 0.5,
        "logits": [[0.1, None], [0.2, -0.3]],
        "counts": [[30, 2], [25, 40]],
        "source": {"model": "x"},
    }
    mutated = odd.mutate_document(draw, good, False)
    path.write_bytes(mutated.content)
    draw.show(mutated.how)
    found = Equilibrium.load(path)
    targets = found.targets(draw.choice((0.0, 0.5)))
    check(bool(np.isfinite(targets).all()) and bool(((targets > 0) & (targets < 1)).all()), "a target outside 0 to 1")
    check(bool((found.counts >= 0).all()), "a negative count")
    check(isinstance(found.source, dict), "a source that is not an object")
    found.save(draw.place / "again.json")
    again = Equilibrium.load(draw.place / "again.json")
    check(np.allclose(again.targets(), found.targets(), atol=1e-4), "saving and loading changes the equilibrium")
    unmeasured = re.match(r"logits/0/1|logits/./. became None", mutated.how)  # a head may have no median
    if mutated.change == "structure" and not unmeasured and not mutated.how.startswith(("source", "something")):
        path.write_text(json.dumps(good))
        check(
            np.array_equal(Equilibrium.load(path).targets(), found.targets()), "accepted as a different equilibrium"
        )
