"""Partial information decomposition: unique, redundant and synergistic information of image and text.

Information is measured in bits, for a discrete joint distribution P[v, l, y].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

Scalar = float | Float[Tensor, "..."]
Joint = Float[np.ndarray, "v l y"]

_SIGN_FLOOR = 1e-9
_RAREST = 1e-12
_IPF_SWEEPS = 5000
_BROJA_GAP = 5e-7


@dataclass(frozen=True)
class PidAtoms:
    """The four parts of the information that two sources, image and language, have about a target."""

    unique_visual: Scalar
    unique_language: Scalar
    redundancy: Scalar
    synergy: Scalar

    @property
    def total(self) -> Scalar:
        return self.unique_visual + self.unique_language + self.redundancy + self.synergy


def pid_atoms(i_vis: Scalar, i_lang: Scalar, i_total: Scalar, redundancy: Scalar) -> PidAtoms:
    """The atoms for a given redundancy. They add up to i_total and may be negative."""
    i_syn = i_total - i_vis - i_lang
    return PidAtoms(i_vis - redundancy, i_lang - redundancy, redundancy, i_syn + redundancy)


def mutual_information(joint: Float[np.ndarray, "x y"]) -> float:
    """I(X; Y) of a joint distribution, in bits."""
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    seen = joint > 0
    return float(np.sum(joint[seen] * np.log2(joint[seen] / independent[seen])))


def i_min(joint: Joint) -> float:
    """Williams and Beer: the expected minimum of the specific informations about each outcome of y."""
    joint = _normalised(joint)
    weight = joint.sum((0, 1))
    specific = []
    for pair in (joint.sum(1), joint.sum(0)):
        # P(x|y)·P(y)·log P(x, y)/(P(x)P(y)), so the minimum over sources is already weighted by P(y).
        local = _log_ratio(pair, pair.sum(1, keepdims=True) * weight)
        specific.append((pair * local).sum(0))
    return float(np.minimum(*specific).sum())


def broja(joint: Joint) -> float:
    """Bertschinger et al.: I(V;Y) + I(L;Y) − min I_Q(V,L;Y) over Q with P's marginals (v, y) and (l, y).

    Accurate to about 1e-6 bits. Ten bins per variable take a second.
    """
    joint = _normalised(joint)
    visual, language = joint.sum(1), joint.sum(0)
    coupled = _least_informative(visual, language)
    joined = mutual_information(coupled.reshape(-1, coupled.shape[2]))
    return mutual_information(visual) + mutual_information(language) - joined


def ccs(joint: Joint) -> float:
    """Ince: the expected pointwise co-information where all changes in surprisal have the same sign.

    The expectation is over the maximum-entropy distribution with the pairwise marginals of P.
    """
    joint = _normalised(joint)
    likely = _largest_entropy(joint)
    outcome = joint.sum((0, 1))
    visual, language, pair = joint.sum(1), joint.sum(0), likely.sum(2, keepdims=True)
    from_v = _log_ratio(visual, visual.sum(1, keepdims=True) * outcome)[:, None, :]
    from_l = _log_ratio(language, language.sum(1, keepdims=True) * outcome)[None, :, :]
    from_both = _log_ratio(likely, pair * outcome)
    common = from_v + from_l - from_both
    signs = [np.sign(np.where(np.abs(x) < _SIGN_FLOOR, 0.0, x)) for x in (from_v, from_l, from_both, common)]
    agree = (signs[0] == signs[1]) & (signs[1] == signs[2]) & (signs[2] == signs[3])
    return float(np.sum(np.where(agree, likely * common, 0.0)))


def decompose(joint: Joint, redundancy: Callable[[Joint], float] = broja) -> PidAtoms:
    """The atoms of a discrete joint distribution P[v, l, y] under one of the redundancy measures."""
    joint = _normalised(joint)
    i_total = mutual_information(joint.reshape(-1, joint.shape[2]))
    i_vis, i_lang = mutual_information(joint.sum(1)), mutual_information(joint.sum(0))
    return pid_atoms(i_vis, i_lang, i_total, redundancy(joint))


def discretise(visual: ArrayLike, language: ArrayLike, target: ArrayLike, bins: int = 4) -> Joint:
    """The joint histogram of samples in quantile bins. A variable with few distinct values keeps them."""
    samples = [np.asarray(x, dtype=np.float64) for x in (visual, language, target)]
    if any(x.ndim != 1 or x.shape != samples[0].shape for x in samples) or samples[0].size == 0:
        raise ValueError(f"expected three non-empty series of equal length, got {[x.shape for x in samples]}")
    if not all(np.isfinite(x).all() for x in samples):
        raise ValueError("the samples contain NaN or infinite values: drop those rows first")
    joint = np.zeros((bins, bins, bins))
    np.add.at(joint, tuple(_bin(x, bins) for x in samples), 1 / len(samples[0]))
    return joint


def _bin(x: Float[np.ndarray, " n"], bins: int) -> np.ndarray:
    values, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    if len(values) <= bins:
        return codes
    # Binning by middle rank puts ties into the same bin.
    middle = np.cumsum(counts) - counts / 2
    return (middle * bins / len(x)).astype(np.int64)[codes]


def _normalised(joint: Joint) -> Joint:
    if joint.ndim != 3 or not (joint >= 0).all() or not 0 < joint.sum() < np.inf:
        raise ValueError("a joint distribution must be an array [v, l, y] of probabilities that are not all zero")
    # Such rare outcomes carry no measurable information, and their squares underflow.
    frequent = np.where(joint > _RAREST * joint.sum(), joint, 0.0)
    return frequent / frequent.sum()


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    return np.divide(numerator, denominator, out=np.zeros(shape), where=denominator > 0)


def _log_ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    ratio = _ratio(numerator, denominator)
    return np.log2(ratio, out=np.zeros_like(ratio), where=ratio > 0)


def _largest_entropy(joint: Joint) -> Joint:
    """Iterative proportional fitting. It converges like 1/sweeps if the marginals force a cell to be empty."""
    fitted = np.full(joint.shape, 1 / joint.size)
    targets = [(axis, joint.sum(axis, keepdims=True)) for axis in range(3)]
    for _ in range(_IPF_SWEEPS):
        before = fitted
        for axis, target in targets:
            fitted = fitted * _ratio(target, fitted.sum(axis, keepdims=True))
        if np.abs(fitted - before).max() < 1e-13:
            break
    return fitted


def _least_informative(visual: Float[np.ndarray, "v y"], language: Float[np.ndarray, "l y"]) -> Joint:
    """The coupling with minimum I(V,L;Y), by Newton's method with a logarithmic barrier."""
    coupled = _ratio(visual[:, None, :] * language[None, :, :], visual.sum(0))
    support = np.nonzero(coupled)
    at_v, at_l, at_y = support
    cells = _indicator(at_v, at_l)
    marginals = np.concatenate([_indicator(at_v, at_y), _indicator(at_l, at_y)])
    q, barrier = coupled[support], 1.0
    marginals /= (marginals @ q)[:, None]
    # The minimum with a barrier is within barrier·len(q) nats of the true minimum.
    while barrier * len(q) > _BROJA_GAP:
        barrier /= 10
        q = _barrier_minimum(q, cells, marginals, barrier)
    coupled[support] = q
    return coupled


def _indicator(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, "group n"]:
    _, group = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    return (group.reshape(-1) == np.arange(group.max() + 1)[:, None]).astype(np.float64)


def _barrier_minimum(q: np.ndarray, cells: np.ndarray, marginals: np.ndarray, barrier: float) -> np.ndarray:
    """argmin Σ q·ln(q/Σ_y q) − barrier·Σ ln q over all q with marginals @ q = 1."""

    def value(x: np.ndarray) -> float:
        return float(np.sum(x * np.log(x / (cells @ x @ cells)) - barrier * np.log(x)))

    for _ in range(100):
        step, decrement = _newton_step(q, cells, marginals, barrier)
        if decrement < 1e-3 * barrier:
            break
        size = min(1.0, 0.99 / max(float(-step.min()), 1e-12))
        while value(q + size * q * step) > value(q) - 0.1 * size * decrement and size > 1e-10:
            size /= 2
        q = q + size * q * step
    return q


def _newton_step(q: np.ndarray, cells: np.ndarray, marginals: np.ndarray, barrier: float) -> tuple[np.ndarray, float]:
    """The step relative to q, and Newton's decrement. The Hessian in q is ill-conditioned near the boundary."""
    gradient = q * np.log(q / (cells @ q @ cells)) - barrier
    stiffness = q + barrier
    weight = q / stiffness
    slack = cells @ (barrier * weight)

    def inverse_hessian(x: np.ndarray) -> np.ndarray:
        return x / stiffness + weight * ((x * weight) @ cells.T / slack @ cells)

    rows = marginals * q
    solved = inverse_hessian(rows)
    # The next step corrects the rounding errors of the marginals.
    wanted = solved @ gradient + 1 - rows.sum(1)
    # Least squares, because the marginals (v, y) and (l, y) share P(y) and are not independent.
    multipliers = np.linalg.lstsq(solved @ rows.T, wanted, rcond=1e-12)[0]
    step = inverse_hessian(multipliers @ rows - gradient)
    return step, -float(gradient @ step)
