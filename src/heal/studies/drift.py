"""The premise of the paper: synergy heads use the image less when the model names absent objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import percentile_interval
from heal.extras import optional
from heal.studies.objects import ObjectToken

with optional():
    from scipy.stats import rankdata

WIDTH = 4
"""Answers are divided into windows of this many tokens to compare similar positions."""


@dataclass(frozen=True)
class Separation:
    """How well a value separates correct tokens (expected to be higher) from hallucinated ones."""

    value: str
    correct: int
    hallucinated: int
    mean_correct: float
    mean_hallucinated: float
    auc: float
    low: float
    high: float
    within: float
    """AUC among tokens at similar positions of the answer: both hallucinations and drift may increase along it."""


def mean_alpha(token: ObjectToken, kind: HeadType = HeadType.SYNERGY) -> float:
    """Mean α_vis over the heads of one type; NaN if there are none."""
    share = token.alpha_vis[(token.types == int(kind)) & ~np.isnan(token.alpha_vis)]
    return float(share.mean()) if share.size else float("nan")


VALUES: dict[str, Callable[[ObjectToken], float]] = {
    "α_vis of synergy heads": mean_alpha,
    "I_vis / I_total of synergy heads": lambda t: float(t.parts[0]),
    "I_lang / I_total of synergy heads": lambda t: float(t.parts[1]),
    "number of visual heads": lambda t: float((t.types == int(HeadType.VISUAL)).sum()),
    "number of language heads": lambda t: float((t.types == int(HeadType.LANGUAGE)).sum()),
    "number of synergy heads": lambda t: float((t.types == int(HeadType.SYNERGY)).sum()),
    "information of all heads": lambda t: float(np.nanmean(t.total)),
    "place in the answer": lambda t: -float(t.step),
}


def auc(correct: np.ndarray, hallucinated: np.ndarray) -> float:
    """Probability that a correct token has the higher value; ties count half. NaN if either side is empty."""
    n, m = len(correct), len(hallucinated)
    if not n or not m:
        return float("nan")
    ranks = rankdata(np.concatenate([correct, hallucinated]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def separations(tokens: Sequence[ObjectToken], resamples: int = 500, seed: int = 0) -> list[Separation]:
    """One row per value, with intervals from resampling images. The first value is also evaluated on first mentions
    only, because repeated names can be copied from the text."""
    fresh = [token for token in tokens if token.first]
    name, value = next(iter(VALUES.items()))
    rows = [separation(name, value, tokens, resamples, seed) for name, value in VALUES.items()]
    return [rows[0], separation(f"{name}, first mentions", value, fresh, resamples, seed), *rows[1:]]


def separation(
    name: str, value: Callable[[ObjectToken], float], tokens: Sequence[ObjectToken], resamples: int, seed: int
) -> Separation:
    pairs = [(t, x) for t in tokens if not np.isnan(x := value(t))]
    values = np.array([x for _, x in pairs])
    correct = np.array([t.correct for t, _ in pairs], bool)
    steps = np.array([t.step for t, _ in pairs])
    pictures = np.array([t.picture for t, _ in pairs])
    low, high = _interval(values, correct, pictures, resamples, seed)
    return Separation(
        name,
        int(correct.sum()),
        int((~correct).sum()),
        _mean(values[correct]),
        _mean(values[~correct]),
        auc(values[correct], values[~correct]),
        low,
        high,
        _within(values, correct, steps),
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _interval(
    values: np.ndarray, correct: np.ndarray, pictures: np.ndarray, resamples: int, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap of the AUC over images."""
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero(pictures == p) for p in np.unique(pictures)]
    found = []
    for _ in range(resamples if rows else 0):
        at = np.concatenate([rows[i] for i in rng.integers(len(rows), size=len(rows))])
        found.append(auc(values[at][correct[at]], values[at][~correct[at]]))
    return percentile_interval(np.array(found))


def _within(values: np.ndarray, correct: np.ndarray, steps: np.ndarray) -> float:
    """Mean AUC over windows of the answer, weighted by the number of pairs."""
    weights, found = [], []
    for place in np.unique(steps // WIDTH):
        here = steps // WIDTH == place
        good, bad = values[here & correct], values[here & ~correct]
        if good.size and bad.size:
            weights.append(good.size * bad.size)
            found.append(auc(good, bad))
    return float(np.average(found, weights=weights)) if found else float("nan")
