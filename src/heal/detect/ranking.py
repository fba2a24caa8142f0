"""How well scores tell hallucinated words from correct ones, also in resamples with weights."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float


def auroc(scores: np.ndarray, hallucinated: np.ndarray) -> float:
    """Probability that a hallucinated word has the higher score; ties count half. NaN if either kind is missing."""
    return float(weighted_auroc(scores, hallucinated, np.ones((1, len(scores))))[0])


def average_precision(scores: np.ndarray, hallucinated: np.ndarray) -> float:
    """Area under the curve of precision against recall, as a sum of steps. NaN without hallucinated words."""
    return float(weighted_precision(scores, hallucinated, np.ones((1, len(scores))))[0])


def weighted_auroc(
    scores: Float[np.ndarray, " word"],
    hallucinated: Bool[np.ndarray, " word"],
    weights: Float[np.ndarray, "block word"],
) -> Float[np.ndarray, " block"]:
    """One value for each row of weights, which say how often a word counts."""
    bad, good = _sums_by_score(scores, hallucinated, weights)
    below = np.cumsum(good, axis=1) - good
    pairs = bad.sum(1) * good.sum(1)
    wins = (bad * (below + good / 2)).sum(1)
    return np.divide(wins, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)


def weighted_precision(
    scores: Float[np.ndarray, " word"],
    hallucinated: Bool[np.ndarray, " word"],
    weights: Float[np.ndarray, "block word"],
) -> Float[np.ndarray, " block"]:
    bad, good = (own[:, ::-1] for own in _sums_by_score(scores, hallucinated, weights))
    found = np.cumsum(bad, axis=1)
    named = np.maximum(found + np.cumsum(good, axis=1), 1e-12)
    total = bad.sum(1)
    area = (bad * found / named).sum(1)
    return np.divide(area, total, out=np.full(len(weights), np.nan), where=total > 0)


def weighted_brier(
    probabilities: Float[np.ndarray, " word"],
    hallucinated: Bool[np.ndarray, " word"],
    weights: Float[np.ndarray, "block word"],
) -> Float[np.ndarray, " block"]:
    """The mean squared error of probabilities."""
    total = weights.sum(1)
    sums = weights @ (probabilities - hallucinated) ** 2
    return np.divide(sums, total, out=np.full(len(weights), np.nan), where=total > 0)


def _sums_by_score(
    scores: np.ndarray, hallucinated: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the hallucinated and of the correct words at each different score, [block, scores], rising."""
    order = np.argsort(scores, kind="stable")
    if not len(order):
        return np.zeros((len(weights), 1)), np.zeros((len(weights), 1))
    ordered = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    own = weights[:, order]
    bad = np.add.reduceat(own * hallucinated[order], starts, axis=1)
    return bad, np.add.reduceat(own, starts, axis=1) - bad
