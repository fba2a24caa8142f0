"""How many correct answers become hallucinated with another method, and how many hallucinated ones are corrected.

Objects in descriptions are counted once per image, whatever their number of mentions: a token of one answer has no
counterpart in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heal.bench.tasks.base import Counts, Number, Sample, ratio

Parses = Mapping[str, Mapping[str, Any]]
"""Parsed answers by sample."""
COUNTS = ("correct", "became", "hallucinated", "corrected", "lost")
Count = Callable[[Sample, Mapping[str, Any], Mapping[str, Any]], Mapping[str, float]]


def changes(samples: Iterable[Sample], before: Parses, after: Parses, count: Count) -> dict[str, Counts]:
    """The counts of each image, of the samples that both methods answered."""
    found: dict[str, dict[str, float]] = {}
    for sample in samples:
        if sample.id in before and sample.id in after:
            own = count(sample, before[sample.id], after[sample.id])
            sums = found.setdefault(sample.unit, dict.fromkeys(COUNTS, 0.0))
            for name, number in own.items():
                sums[name] += number
    return dict(found)


def of_verdict(sample: Sample, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """A yes/no answer. An answer without a verdict is not correct."""
    was, now = (parse["answer"] == sample.truth["label"] for parse in (before, after))
    return {
        "correct": float(was),
        "became": float(was and not now),
        "hallucinated": float(not was),
        "corrected": float(not was and now),
        "lost": float(was and not now),
    }


def of_objects(sample: Sample, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """The objects that a description names. An object that is in the image cannot become hallucinated: `became` are
    hallucinated objects that were not named before, and `lost` the correct ones that are not named any more."""
    objects = set(sample.truth["objects"])
    was, now = (set(parse["mentions"]) for parse in (before, after))
    return {
        "correct": float(len(was & objects)),
        "became": float(len(now - objects - was)),
        "hallucinated": float(len(was - objects)),
        "corrected": float(len(was - objects - now)),
        "lost": float(len((was & objects) - now)),
    }


def rates(totals: Mapping[str, Number]) -> dict[str, Number]:
    """Percentages: became and lost per correct one, corrected per hallucinated one."""
    return {
        "became": ratio(totals["became"], totals["correct"], 100),
        "corrected": ratio(totals["corrected"], totals["hallucinated"], 100),
        "lost": ratio(totals["lost"], totals["correct"], 100),
    }


def labelled(samples: Sequence[Sample], label: str | None) -> list[Sample]:
    """The questions with this correct answer; all of them if it is None."""
    return [sample for sample in samples if label in (None, sample.truth.get("label"))]
