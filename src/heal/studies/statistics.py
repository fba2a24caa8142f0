"""Compare a value at correct and at hallucinated tokens: means, differences and AUC, with intervals over images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from heal.bench.score.bootstrap import Interval, percentile_interval, resampling_weights
from heal.extras import optional

with optional():
    from scipy.stats import rankdata

WIDTH = 4
"""Answers are divided into windows of this many tokens to compare similar positions."""
FEWEST = 20
"""Fewer correct or hallucinated tokens than this give no interval."""
RESAMPLES = 1000

Weights = Float[np.ndarray, "resample token"]


@dataclass(frozen=True, eq=False)
class Labelled:
    """One value at many tokens. Tokens whose value is undefined (NaN) are left out by `of`."""

    values: Float[np.ndarray, " token"]
    correct: Bool[np.ndarray, " token"]
    units: Int[np.ndarray, " token"]
    """The image of each token, numbered from 0."""
    steps: Int[np.ndarray, " token"]
    """The position in the answer."""

    @classmethod
    def of(
        cls, values: Sequence[float], correct: Sequence[bool], units: Sequence[object], steps: Sequence[int]
    ) -> Labelled:
        known = ~np.isnan(np.asarray(values, float))
        numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
        codes = np.array([numbers[unit] for unit in units], np.int64)
        every = np.asarray(values, float), np.asarray(correct, bool), codes, np.asarray(steps, np.int64)
        return cls(*(array.reshape(-1)[known] for array in every))

    @property
    def windows(self) -> list[Int[np.ndarray, " some"]]:
        """The tokens of each window that has correct and hallucinated ones."""
        places = self.steps // WIDTH
        every = (np.flatnonzero(places == place) for place in np.unique(places))
        return [at for at in every if 0 < self.correct[at].sum() < len(at)]


@dataclass(frozen=True)
class Compared:
    """Intervals are NaN if there are fewer than `FEWEST` tokens on a side."""

    correct: int
    hallucinated: int
    mean_correct: Interval
    mean_hallucinated: Interval
    difference: Interval
    """Correct − hallucinated."""
    auc: Interval
    """Probability that a correct token has the higher value."""
    matched_difference: Interval
    """Among tokens at similar positions of the answer."""
    matched_auc: Interval

    @property
    def too_few(self) -> bool:
        return min(self.correct, self.hallucinated) < FEWEST


def compare(tokens: Labelled, seed: int = 0, resamples: int = RESAMPLES) -> Compared:
    """All comparisons, with percentile bootstrap intervals from resampling images."""
    good, bad = int(tokens.correct.sum()), int((~tokens.correct).sum())
    enough = min(good, bad) >= FEWEST
    weights = list(_resampled(tokens, seed, resamples)) if enough else []

    def interval(figure: Callable[[Labelled, Weights], np.ndarray]) -> Interval:
        here = float(figure(tokens, np.ones((1, len(tokens.values))))[0])
        found = [figure(tokens, some) for some in weights]
        return Interval(here, *percentile_interval(np.concatenate(found or [np.array([])])))

    return Compared(
        good,
        bad,
        interval(lambda t, w: _mean(t.values, w * t.correct)),
        interval(lambda t, w: _mean(t.values, w * ~t.correct)),
        interval(_difference),
        interval(_auc),
        interval(lambda t, w: _matched(t, w, _difference, harmonic=True)),
        interval(lambda t, w: _matched(t, w, _auc, harmonic=False)),
    )


def auc(correct: np.ndarray, hallucinated: np.ndarray) -> float:
    """Probability that a correct token has the higher value; ties count half. NaN if either side is empty."""
    n, m = len(correct), len(hallucinated)
    if not n or not m:
        return float("nan")
    ranks = rankdata(np.concatenate([correct, hallucinated]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def mean_interval(values: Sequence[float], units: Sequence[object], seed: int = 0) -> Interval:
    """The mean over tokens with its interval over images. NaN values are left out."""
    tokens = Labelled.of(values, [True] * len(values), units, [0] * len(values))
    if not len(tokens.values):
        return Interval(*[float("nan")] * 3)
    found = [_mean(tokens.values, w) for w in _resampled(tokens, seed, RESAMPLES)]
    return Interval(float(tokens.values.mean()), *percentile_interval(np.concatenate(found)))


def _resampled(tokens: Labelled, seed: int, resamples: int) -> Iterator[Weights]:
    """How often each token is drawn if its image is. Images without tokens are not resampled."""
    present, codes = np.unique(tokens.units, return_inverse=True)
    return (weights[:, codes] for weights in resampling_weights(len(present), seed, resamples))


def _mean(values: np.ndarray, weights: Weights) -> np.ndarray:
    total = weights.sum(1)
    return np.divide(weights @ values, total, out=np.full(len(total), np.nan), where=total > 0)


def _difference(tokens: Labelled, weights: Weights) -> np.ndarray:
    return _mean(tokens.values, weights * tokens.correct) - _mean(tokens.values, weights * ~tokens.correct)


def _auc(tokens: Labelled, weights: Weights) -> np.ndarray:
    """The share of weighted pairs that a correct token wins, by cumulated weights in the order of the values."""
    levels, codes = np.unique(tokens.values, return_inverse=True)
    good, bad = (_by_level(weights * side, codes, len(levels)) for side in (tokens.correct, ~tokens.correct))
    below = bad.cumsum(1) - bad
    pairs = good.sum(1) * bad.sum(1)
    return np.divide((good * (below + bad / 2)).sum(1), pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _by_level(weights: Weights, codes: np.ndarray, levels: int) -> np.ndarray:
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(levels))
    return np.add.reduceat(weights[:, order], starts, axis=1) if levels else np.zeros((len(weights), 0))


def _matched(
    tokens: Labelled, weights: Weights, figure: Callable[[Labelled, Weights], np.ndarray], harmonic: bool
) -> np.ndarray:
    """The mean of a figure over windows of the answer, weighted by pairs, or by n·m/(n + m)."""
    total, mass = np.zeros(len(weights)), np.zeros(len(weights))
    for at in tokens.windows:
        here = Labelled(tokens.values[at], tokens.correct[at], tokens.units[at], tokens.steps[at])
        w = weights[:, at]
        n, m = (w * here.correct).sum(1), (w * ~here.correct).sum(1)
        weight = n * m / np.maximum(n + m, 1) if harmonic else n * m
        found = figure(here, w)
        total += np.where(weight > 0, np.nan_to_num(found) * weight, 0)
        mass += weight
    return np.divide(total, mass, out=np.full(len(mass), np.nan), where=mass > 0)
