"""Yes/no answers: strict parsing and binary classification figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from heal.bench.tasks.base import Number, ratio

Verdict = Literal["yes", "no"]
COUNTS = ("tp", "fp", "tn", "fn", "n", "unparsable")


def strict(text: str) -> Verdict | None:
    """`yes` or `no` if the first sentence contains only one of them, otherwise None."""
    words = re.findall(r"[a-z]+(?:'[a-z]+)?", text.replace("’", "'").strip().partition(".")[0].lower())
    yes, no = "yes" in words, "no" in words
    if (yes and no) or not words:
        return None
    if words[0] in ("yes", "no"):
        return "yes" if yes else "no"
    denied = no or any(word == "not" or word.endswith("n't") for word in words)
    if yes == denied:
        return None
    return "yes" if yes else "no"


def confusion(pairs: Iterable[tuple[str, Mapping[str, object]]]) -> dict[str, float]:
    """Confusion counts of (label, parse). Yes is positive. An answer without a verdict is wrong, not a yes or no."""
    found = dict.fromkeys(COUNTS, 0.0)
    for label, parse in pairs:
        answer = parse["answer"]
        found["n"] += 1
        found["unparsable"] += bool(parse["unparsable"])
        if label == "yes":
            found["tp" if answer == "yes" else "fn"] += 1
        elif answer is not None:
            found["fp" if answer == "yes" else "tn"] += 1
    return found


def figures(totals: Mapping[str, Number], prefix: str = "") -> dict[str, Number]:
    """Percentages, and the number of unparsable answers. Precision and f1 are undefined unless both labels occur,
    because a constant answer would be perfect or always wrong."""
    tp, fp, tn, fn, n, lost = (totals[prefix + key] for key in COUNTS)
    both = np.where((np.asarray(tp + fn) > 0) & (np.asarray(n - tp - fn) > 0), 1.0, 0.0)
    return {
        "accuracy": ratio(tp + tn, n, 100),
        "precision": ratio(tp, (tp + fp) * both, 100),
        "recall": ratio(tp, tp + fn, 100),
        "f1": ratio(2 * tp, (2 * tp + fp + fn) * both, 100),
        "yes_ratio": ratio(tp + fp, n, 100),
        "unparsable": lost,
    }
