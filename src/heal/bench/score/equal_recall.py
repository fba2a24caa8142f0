"""Gain at equal recall: the CHAIR_i of two methods compared where their captions reach the same object recall.

A method that names fewer objects has a lower CHAIR_i without being more truthful. So every caption is cut after
1, 2, … sentences. The points (object recall, CHAIR_i) of all captions, after each number of sentences, make a curve
for each method, and the curves are compared at the same recall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heal.bench.score.bootstrap import Interval, percentile_interval, resampling_weights
from heal.bench.tasks.base import Counts, Sample, Task
from heal.errors import DataError

KEYS = ("wrong", "mentions", "hits", "truths")
MOST = 24
"""Number of cuts of a caption, so that an endless answer does not take endless time."""

Cuts = Mapping[str, Sequence[Counts]]
"""For each unit, its counts after 1, 2, … sentences; the last are those of the whole caption."""


@dataclass(frozen=True)
class EqualRecall:
    """CHAIR_i of the second method minus that of the first at the same object recall, in percentage points."""

    mean: Interval
    """Mean over the recall range that both methods reach."""
    highest: Interval
    """At the highest recall that both methods reach."""
    lowest_recall: float
    highest_recall: float
    first: float
    """CHAIR_i of the first method at the highest recall."""
    second: float
    """CHAIR_i of the second method there."""


def cut_counts(task: Task, samples: Iterable[Sample], texts: Mapping[str, str]) -> dict[str, list[dict[str, float]]]:
    """Counts of each answered sample after 1, 2, … sentences, summed over the samples of a unit.

    Empty if the task does not measure captions.
    """
    found: dict[str, list[dict[str, float]]] = {}
    for sample in samples:
        if sample.id not in texts:
            continue
        cuts = task.cuts(texts[sample.id])
        if not cuts:
            return {}
        kept = cuts if len(cuts) <= MOST else [*cuts[: MOST - 1], cuts[-1]]
        rows = [task.counts([sample], [task.parse(sample, text)]) for text in kept]
        own = [{key: row[key] for key in KEYS} for row in rows]
        found[sample.unit] = _sum(found[sample.unit], own) if sample.unit in found else own
    return found


def _sum(one: list[dict[str, float]], other: list[dict[str, float]]) -> list[dict[str, float]]:
    length = max(len(one), len(other))
    pairs = zip(_padded(one, length), _padded(other, length), strict=True)
    return [{key: a[key] + b[key] for key in KEYS} for a, b in pairs]


def _padded(rows: Sequence[Any], length: int) -> list[Any]:
    """Captions that are shorter than others stay whole."""
    return [*rows, *[rows[-1]] * (length - len(rows))]


def equal_recall(
    first: Cuts, second: Cuts, seed: int = 0, resamples: int = 2000, level: float = 0.95
) -> EqualRecall | None:
    """The gain of the second method with paired bootstrap intervals; None without units.

    NaN if the recall ranges of the two methods do not overlap.
    """
    if set(first) != set(second):
        odd = sorted(set(first) ^ set(second))[0]
        raise DataError(f"the two methods answered different samples (for example {odd}) and cannot be paired")
    if not first:
        return None
    tables = [_table([cuts[unit] for unit in first]) for cuts in (first, second)]
    here = _compare(*(_curve(table.sum(0)) for table in tables))
    sampled = []
    for weights in resampling_weights(len(first), seed, resamples):
        sums = [np.tensordot(weights, table, 1) for table in tables]
        sampled += [_compare(_curve(a), _curve(b)) for a, b in zip(*sums, strict=True)]
    spread = np.array([(found.mean, found.second - found.first) for found in sampled])
    return EqualRecall(
        Interval(here.mean, *percentile_interval(spread[:, 0], level)),
        Interval(here.second - here.first, *percentile_interval(spread[:, 1], level)),
        here.low,
        here.high,
        here.first,
        here.second,
    )


def _table(units: Sequence[Sequence[Counts]]) -> np.ndarray:
    """[units, sentences, keys]."""
    length = max(len(rows) for rows in units)
    return np.array([[[row[key] for key in KEYS] for row in _padded(rows, length)] for rows in units], dtype=float)


@dataclass(frozen=True)
class Curve:
    """CHAIR_i as a function of recall, linear between points."""

    recall: np.ndarray
    chair: np.ndarray

    def at(self, recall: np.ndarray) -> np.ndarray:
        return np.interp(recall, self.recall, self.chair)


def _curve(sums: np.ndarray) -> Curve:
    """The points of [sentences, keys], by recall. Of cuts with the same recall the shortest counts."""
    wrong, mentions, hits, truths = sums.T
    known = (mentions > 0) & (truths > 0)
    recall, first = np.unique(100 * hits[known] / truths[known], return_index=True)
    return Curve(recall, (100 * wrong[known] / mentions[known])[first])


@dataclass(frozen=True)
class _Compared:
    mean: float
    low: float
    high: float
    first: float
    second: float


def _compare(first: Curve, second: Curve) -> _Compared:
    nan = float("nan")
    if not len(first.recall) or not len(second.recall):
        return _Compared(nan, nan, nan, nan, nan)
    low = max(float(first.recall[0]), float(second.recall[0]))
    high = min(float(first.recall[-1]), float(second.recall[-1]))
    if low > high:
        return _Compared(nan, nan, nan, nan, nan)
    points = np.unique(np.concatenate([first.recall, second.recall, [low, high]]))
    points = points[(points >= low) & (points <= high)]
    before, after = first.at(points), second.at(points)
    gaps = after - before
    # both curves are linear between these points, so the trapezoidal rule is exact
    mean = float(np.trapezoid(gaps, points) / (high - low)) if high > low else float(gaps[0])
    return _Compared(mean, low, high, float(before[-1]), float(after[-1]))
