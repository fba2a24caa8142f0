"""Percentile bootstrap over units, and paired differences between methods on the same resamples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heal.bench.tasks.base import Counts, Number
from heal.errors import DataError

Score = Callable[[Mapping[str, Number]], Mapping[str, Number]]
LEVEL = 0.95
BLOCK = 256  # resamples per block: [256, units] weights stay small for any benchmark


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def intervals(
    score: Score, counts: Mapping[str, Counts], seed: int = 0, resamples: int = 2000, level: float = LEVEL
) -> dict[str, Interval]:
    """Intervals of all figures, computed from the counts of each unit."""
    table, keys = _table(counts)
    return _intervals(score, [table], keys, seed, resamples, level)


def differences(
    score: Score,
    first: Mapping[str, Counts],
    second: Mapping[str, Counts],
    seed: int = 0,
    resamples: int = 2000,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """Intervals of second − first, paired: both use the same resampled units."""
    if set(first) != set(second):
        odd = sorted(set(first) ^ set(second))[0]
        raise DataError(f"the two methods answered different samples (for example {odd}) and cannot be paired")
    before, keys = _table(first)
    after, others = _table({unit: second[unit] for unit in first})
    if keys != others:
        raise DataError("the counts of the two methods have different keys: score both again with the same version")
    return _intervals(score, [before, after], keys, seed, resamples, level)


def _intervals(
    score: Score, tables: Sequence[np.ndarray], keys: Sequence[str], seed: int, resamples: int, level: float
) -> dict[str, Interval]:
    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        found = [score(dict(zip(keys, (weights @ table).T, strict=True))) for table in tables]
        return {
            name: np.asarray(found[1][name]) - found[0][name] if len(found) > 1 else np.asarray(found[0][name])
            for name in found[0]
        }

    units = len(tables[0])
    if not units:
        return {}
    here = figures(np.ones((1, units)))
    parts = [figures(weights) for weights in resampling_weights(units, seed, resamples)]
    return {
        name: Interval(float(value[0]), *percentile_interval(np.concatenate([p[name] for p in parts]), level))
        for name, value in here.items()
    }


def resampling_weights(units: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Yield how often each unit is drawn, [block, units]. Deterministic for a given seed."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, BLOCK):
        size = min(BLOCK, resamples - start)
        yield rng.multinomial(units, np.full(units, 1 / units), size=size).astype(float)


def percentile_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The interval of resampled figures. Resamples where the figure is undefined (NaN) are ignored."""
    known = values[~np.isnan(values)]
    if not known.size:
        return float("nan"), float("nan")
    edge = 50 * (1 - level)
    low, high = np.percentile(known, [edge, 100 - edge])
    return float(low), float(high)


def _table(counts: Mapping[str, Counts]) -> tuple[np.ndarray, list[str]]:
    """The counts as an array [units, keys], and the keys."""
    rows = list(counts.values())
    keys = sorted(rows[0]) if rows else []
    for unit, row in counts.items():
        if sorted(row) != keys:
            raise DataError(f"the counts of unit {unit} have different keys from the others")
    return np.array([[float(row[k]) for k in keys] for row in rows]).reshape(len(rows), len(keys)), keys
