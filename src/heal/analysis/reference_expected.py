"""Expected counterfactual scores with every state written out: the oracle of `expected`.

It loops over rows, heads, cases and states, in fp64, and reads keys and values themselves instead of running moments.
It shares only the table of the cases with the fast path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heal.analysis.counterfactual import Attended, Covariance
from heal.analysis.information import HeadScores, Measure
from heal.analysis.lognormal import NODES, SPREADS, nodes, position
from heal.analysis.split import NEUTRAL, TINY

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Slot:
    """A partial, real or noise: its log-normaliser, mean value, and E‖ε‖² of the noise in it."""

    lse: float
    value: Array
    variance: float = 0.0


def reference_expected_scores(at: Attended, covariance: Covariance, measure: Measure) -> HeadScores:
    """Visual, language and total information of all heads."""
    rows, heads, _ = at.query.shape
    found = [[_head(at, row, head, covariance, measure) for head in range(heads)] for row in range(rows)]
    scores = torch.tensor(found, dtype=torch.float64, device=at.query.device)
    return HeadScores(*scores.unbind(-1))


def _head(at: Attended, row: int, head: int, covariance: Covariance, measure: Measure) -> tuple[float, float, float]:
    kv = head * at.key.shape[1] // at.query.shape[1]
    query = at.query[row, head].double().cpu().numpy() * at.scale
    key, value = (states[row, kv].double().cpu().numpy() for states in (at.key, at.value))
    real, fake = [], []
    for mask in at.regions.masks[row].cpu().numpy():
        own = query, key[mask], value[mask]
        real.append(_real(*own, at.softcap))
        fake.append(_cases(*own, at.softcap, covariance))
    rest = real[NEUTRAL:]
    state = [_state([real[0], real[1], *rest])]
    similarity = {
        "total": [[_state([x, y, *rest]) for y in fake[1]] for x in fake[0]],
        "visual": [[_state([real[0], y, *rest]) for y in fake[1]]],
        "language": [[_state([x, real[1], *rest]) for x in fake[0]]],
    }
    mean = {
        name: float(np.mean([_similarity(state[0].value, other, measure) for row in states for other in row]))
        for name, states in similarity.items()
    }
    return mean["visual"] - mean["total"], mean["language"] - mean["total"], 1 - mean["total"]


def _capped(scores: Array, softcap: float | None) -> Array:
    return scores if softcap is None else np.tanh(scores / softcap) * softcap


def _real(query: Array, key: Array, value: Array, softcap: float | None) -> _Slot:
    if not len(key):
        return _Slot(-np.inf, np.zeros_like(query))
    scores = _capped(key @ query, softcap)
    weights = np.exp(scores - scores.max())
    return _Slot(float(scores.max() + np.log(weights.sum())), weights @ value / weights.sum())


def _cases(query: Array, key: Array, value: Array, softcap: float | None, covariance: Covariance) -> list[_Slot]:
    """The K cases of the noise of one group."""
    n = len(key)
    if n == 0:
        return [_Slot(-np.inf, np.zeros_like(query))] * NODES
    centre = float(query @ key.mean(0))
    variance = float((key @ query).var() if covariance == "full" else query**2 @ key.var(0))
    if softcap is not None:
        points, weights = np.polynomial.hermite_e.hermegauss(16)
        weights = weights / weights.sum()
        scores = _capped(centre + np.sqrt(variance) * points, softcap)
        centre = float(weights @ scores)
        variance = float(weights @ (scores - centre) ** 2)
    where = position(max(np.sqrt(variance), 1e-30))
    table = nodes(n).numpy()
    lse, concentration = (
        [np.interp(where, np.arange(SPREADS), table[:, which, k]) for k in range(NODES)] for which in (0, 1)
    )
    total = value.var(0).sum()
    return [
        _Slot(float(centre + np.log(n) + a), value.mean(0), float(total * c))
        for a, c in zip(lse, concentration, strict=True)
    ]


def _state(parts: list[_Slot]) -> _Slot:
    """Attention over the union of the groups."""
    lse = np.array([part.lse for part in parts])
    share = np.exp(lse - lse.max())
    share /= share.sum()
    value = sum((s * part.value for s, part in zip(share, parts, strict=True)), np.zeros_like(parts[0].value))
    return _Slot(0.0, value, float(sum(s**2 * part.variance for s, part in zip(share, parts, strict=True))))


def _similarity(h: Array, other: _Slot, measure: Measure) -> float:
    """From h·μ, ‖h‖² and E‖H‖² of a state H with mean μ."""
    length, squared = float(h @ h), float(other.value @ other.value + other.variance)
    along = float(h @ other.value)
    cosine = along / max(np.sqrt(length * squared), TINY)
    distance = np.sqrt(max(length - 2 * along + squared, 0.0)) / max(np.sqrt(length) + np.sqrt(squared), TINY)
    found = {"cosine": (1 + cosine) / 2, "l2": 1 - np.tanh(distance / 2)}
    return float(sum(found.values()) / 2 if measure == "cosine+l2" else found[measure])
