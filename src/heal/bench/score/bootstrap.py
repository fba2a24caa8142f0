"""Percentile intervals by resampling units; differences between methods on the same resampled units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heal.bench.tasks.base import Counts, Number
from heal.errors import DataError

Score = Callable[[Mapping[str, Number]], Mapping[str, Number]]
BLOCK = 256  # resamples at a time: [256, units] weights stay small for any benchmark


@dataclass(frozen=True)
class Interval:
    """A figure and where it would fall with other units of the same kind."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def intervals(
    score: Score, counts: Mapping[str, Counts], seed: int = 0, resamples: int = 2000, level: float = 0.95
) -> dict[str, Interval]:
    """Of every figure, from the counts of each unit."""
    table, keys = _table(counts)
    return _intervals(score, [table], keys, seed, resamples, level)


def differences(
    score: Score,
    first: Mapping[str, Counts],
    second: Mapping[str, Counts],
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> dict[str, Interval]:
    """second − first of every figure, paired: both see the same units, drawn equally often."""
    if set(first) != set(second):
        odd = sorted(set(first) ^ set(second))[0]
        raise DataError(f"the two methods answered different samples (for example {odd}): nothing can be paired")
    before, keys = _table(first)
    after, others = _table({unit: second[unit] for unit in first})
    if keys != others:
        raise DataError("the two methods were counted in different ways: score both again with one version")
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
    parts = [figures(weights) for weights in _weights(units, seed, resamples)]
    edge = 50 * (1 - level)
    return {
        name: Interval(float(value[0]), *_quantiles(np.concatenate([p[name] for p in parts]), edge))
        for name, value in here.items()
    }


def _weights(units: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """How often each unit is drawn, [block, units], the same for the same seed."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, BLOCK):
        size = min(BLOCK, resamples - start)
        yield rng.multinomial(units, np.full(units, 1 / units), size=size).astype(float)


def _quantiles(values: np.ndarray, edge: float) -> tuple[float, float]:
    """Resamples in which the figure does not exist (no such question drawn) say nothing about it."""
    known = values[~np.isnan(values)]
    if not known.size:
        return float("nan"), float("nan")
    low, high = np.percentile(known, [edge, 100 - edge])
    return float(low), float(high)


def _table(counts: Mapping[str, Counts]) -> tuple[np.ndarray, list[str]]:
    """[units, keys]"""
    rows = list(counts.values())
    keys = sorted(rows[0]) if rows else []
    for unit, row in counts.items():
        if sorted(row) != keys:
            raise DataError(f"the unit {unit} was counted differently from the others")
    return np.array([[float(row[k]) for k in keys] for row in rows]).reshape(len(rows), len(keys)), keys
