"""Damaged detectors, and complete runs of `heal detect` and `heal study`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

from heal.detect.features import FAMILIES, Features
from heal.detect.model import FILE, Detector
from heal.vlm import EMBEDDED
from tests.fuzz import odd
from tests.fuzz.commands import call, judge_ended
from tests.fuzz.oracle import Draw, check

KEPT = ("text",)
"""Models of the detector that are damaged: the smallest one has everything that the others have."""
QUICK = ("heads-by-token", "head-maps", "within-interval", "normality", "pid")
"""Studies of descriptions of the plain model."""


@cache
def good() -> dict[str, Any]:
    record = json.loads((EMBEDDED / FILE).read_text())
    return {**record, "models": {name: record["models"][name] for name in KEPT}, "baselines": {}}


def detectors(draw: Draw) -> None:
    """A damaged detector is refused, or gives risks between 0 and 1."""
    path = draw.place / FILE
    mutated = odd.mutate_document(draw, good(), False)
    path.write_bytes(mutated.content)
    draw.show(mutated.how)
    found = Detector.load(path)
    risk = found.risk(some_features(found))
    check(bool(np.isfinite(risk).all()) and bool(((risk >= 0) & (risk <= 1)).all()), "a risk outside 0 to 1")
    check(0 <= found.threshold <= 1, "a threshold outside 0 to 1")
    found.save(draw.place / "again.json")
    again = Detector.load(draw.place / "again.json").risk(some_features(found))
    check(np.allclose(again, risk, atol=1e-4), "saving and loading changes the detector")


def some_features(of: Detector) -> Features:
    rng = np.random.default_rng(0)
    used = {name: FAMILIES[name] for name in of.families}
    values = {name: rng.normal(size=(4, len(own.names(of.layers, of.heads)))) for name, own in used.items()}
    return Features({name: own.astype(np.float32) for name, own in values.items()}, of.layers, of.heads)


def detect_commands(draw: Draw) -> None:
    """`heal detect` with one or two images."""
    what = draw.choice(("fit", "eval", "show"))
    detector = draw.place / FILE
    if draw.often(0.6):
        detector.write_bytes(odd.mutate_document(draw, good(), False).content if draw.often(0.5) else _text(good()))
    given = ["detect", what]
    if what == "show":
        given += ["--detector", str(detector)]
    else:
        given += ["--model", "random", "--limit", draw.choice(("1", "2")), "--max-new-tokens", "2"]
        given += ["--out", str(draw.place / "out.json")]
        given += ["--detector", str(detector)] if what == "eval" and draw.often(0.7) else []
        given += ["--method", draw.choice(("heal:calibrate=false", "heal", "vcd", "plain"))] * draw.often(0.4)
        given += ["--seed", draw.choice(("0", "-1", "1"))] * draw.often(0.3)
    given += ["--json"] * draw.often(0.5)
    draw.show("heal " + " ".join(map(repr, given)))
    judge_ended(given, call(draw, given))


def _text(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()


def studies(draw: Draw) -> None:
    """Complete studies of one to three images with a few tokens, interrupted ones and damaged ones among them."""
    names = draw.choice((*QUICK, *QUICK, "heads-by-token pid", "heads-by-token heads-by-token", "list", "nothing"))
    out = draw.place / "out"
    given = ["study", *names.split(), "--model", "random", "--samples", draw.choice(("1", "2", "3"))]
    given += ["--max-new-tokens", draw.choice(("1", "2", "4")), "--out", str(out)]
    options = {
        "--split": ("validation", "test", "train", ""),
        "--distribution": ("natural", "counter", "both", "Natural", "official"),
        "--batch-size": ("1", "2"),
        "--seed": ("0", "1", "-1"),
        "--method": ("heal:interval=1", "heal:preset=paper", "vcd", "plain", "heal:alpha=2"),
        "--records": (str(draw.place / "none"), str(draw.place)),
        "--format": ("md", "csv", "json", "table"),
    }
    for option, values in options.items():
        given += [option, draw.choice(values)] if draw.often(0.25) else []
    given += ["--plan"] * draw.often(0.1)
    draw.show("heal " + " ".join(map(repr, given)))
    judge_ended(given, call(draw, given, whole=True))
    stored = sorted(out.glob("parts/*/*"))
    if stored and draw.often(0.5):  # the second run reads what the first one stored
        path = draw.choice(stored)
        mutated = odd.mutate_bytes(draw, path.read_bytes())
        path.write_bytes(mutated.content)
        draw.show(f"{' '.join(map(repr, given))}, then {path.name}: {mutated.how}")
        judge_ended(given, call(draw, given, whole=True))
