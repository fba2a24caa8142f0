"""The normaliser of n normal scores, as a few deterministic nodes.

The scores of noise keys are centre + s·z_j with n standard normals z_j. Counterfactual attention needs only two
numbers of them: L = log Σ exp(s·z_j), and the concentration C = Σ p_j² of their softmax p. Both are random, and their
distribution depends on n and s alone. A table holds K equally likely values of L for each n and s, with the mean of C
in each of the K cases. So the expectation over draws is a mean over K cases, and no step draws or exponentiates n
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from heal.analysis.split import LOWEST

NODES = 8
PARTICLES = 1024
TOP = 32
"""Order statistics that are sampled exactly. Of the other scores only mean and variance of their sum matter."""

FIRST, LAST = -6, 9
"""Binary logarithms of the smallest and the largest spread in a table."""
COARSE, FINER = 4, 4
PER_DOUBLING = COARSE * FINER
"""Entries of a table for each doubling of s: COARSE of them are computed, the others are interpolated."""
SPREADS = (LAST - FIRST) * PER_DOUBLING + 1
MOST_NUMBERS = 1024
"""Numbers that are kept on a device."""
COUNTS_PER_OCTAVE = 4
"""Numbers of positions that are computed; those between are interpolated in log n."""


def nodes(n: int) -> Float[Tensor, "spreads two nodes"]:
    """(L − log n, C) on the grid of spreads, for n ≥ 1 positions."""
    low, high, share = _neighbours(n)
    return torch.lerp(_computed(low), _computed(high), share) if share else _computed(low)


def _neighbours(n: int) -> tuple[int, int, float]:
    """The computed counts around n, and how far n is from the lower one in log n."""
    step = max(1, 2 ** (n.bit_length() - 1) // COUNTS_PER_OCTAVE)
    low = n // step * step
    if low == n:
        return n, n, 0.0
    high = low + step
    return low, high, math.log(n / low) / math.log(high / low)


@lru_cache(maxsize=512)
def _computed(n: int) -> Float[Tensor, "spreads two nodes"]:
    spread = 2 ** torch.linspace(FIRST, LAST, (LAST - FIRST) * COARSE + 1, dtype=torch.float64)
    total, squares = _sums(n, spread)
    total, order = total.sort(dim=-1)
    concentration = (squares.gather(-1, order) - 2 * total).exp().clamp(max=1)
    found = torch.stack([total - math.log(n), concentration], dim=1)
    return _refined(found.unflatten(-1, (NODES, -1)).mean(-1))


def _sums(n: int, spread: Tensor) -> tuple[Tensor, Tensor]:
    """log Σ exp(s·z) and log Σ exp(2·s·z) of sampled sets of n normals, [spreads, particles]."""
    top = _top(n)
    largest = spread[:, None] * top[:, 0]
    weights = (spread[:, None, None] * (top - top[:, :1])).exp_()
    total, squares = largest + weights.sum(-1).log(), 2 * largest + weights.square_().sum(-1).log()
    if n <= TOP:
        return total, squares
    # the others are independent normals below the smallest of the top ones
    bound, s = top[:, -1], spread[:, None]
    inside = torch.special.log_ndtr(bound)
    first = s.square() / 2 + torch.special.log_ndtr(bound - s) - inside
    second = 2 * s.square() + torch.special.log_ndtr(bound - 2 * s) - inside
    count = n - TOP
    # a lognormal with the mean and the variance of their sum
    relative = ((second - 2 * first).exp().sub(1).clamp(min=0) / count).log1p()
    rest = math.log(count) + first - relative / 2 + relative.sqrt() * _normals()
    return torch.logaddexp(total, rest), torch.logaddexp(squares, math.log(count) + second)


def _top(n: int) -> Float[Tensor, "particles top"]:
    """The largest TOP of n standard normals, in descending order. The largest is stratified over the particles.

    The same uniform numbers serve every n, so that tables are smooth in n.
    """
    uniform = _uniforms()[:, : min(n, TOP)].clone()
    uniform[:, 0] = (torch.arange(PARTICLES, dtype=torch.float64) + 0.5) / PARTICLES
    # U_(1) = V_1^(1/n), U_(k+1) = U_(k) · V_(k+1)^(1/(n−k)): logarithms of descending uniform order statistics
    remaining = torch.arange(n, n - uniform.shape[1], -1, dtype=torch.float64)
    return _inverse_normal((uniform.log() / remaining).cumsum(-1))


def _inverse_normal(log_probability: Tensor) -> Tensor:
    """Φ⁻¹(exp(x)), exact in the upper tail."""
    upper = torch.special.ndtri(-torch.expm1(log_probability)).neg()
    return torch.where(log_probability > -0.5, upper, torch.special.ndtri(log_probability.exp()))


@lru_cache(maxsize=1)
def _uniforms() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(PARTICLES, TOP, generator=generator, dtype=torch.float64).clamp_(1e-12, 1 - 1e-12)


@lru_cache(maxsize=1)
def _normals() -> Tensor:
    return torch.randn(PARTICLES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _refined(coarse: Tensor) -> Tensor:
    """FINER times as many entries, by cubic interpolation between the computed ones."""
    padded = torch.cat([2 * coarse[:1] - coarse[1:2], coarse, 2 * coarse[-1:] - coarse[-2:-1]])
    before, here, after, later = (padded[i : len(padded) - 3 + i] for i in range(4))
    t = (torch.arange(FINER, dtype=coarse.dtype) / FINER).view(-1, *[1] * coarse.dim())
    slope, bend = (after - before) / 2, before - 2.5 * here + 2 * after - later / 2
    jerk = (later - before + 3 * (here - after)) / 2
    fine = here + t * (slope + t * (bend + t * jerk))
    return torch.cat([fine.transpose(0, 1).flatten(0, 1), coarse[-1:]])


class NodeTables:
    """Tables for given counts of visual and language positions, on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bank = Bank()
        self._grids: dict[int, Tensor] = {}
        self._tables: dict[int, Tensor] = {}
        self._numbers: dict[float, Tensor] = {}

    def of(self, counts: Sequence[int]) -> Float[Tensor, "tables spreads two slots"]:
        """L and C/n of the K cases, one table for each of these counts of positions.

        Slot 0 is left for the real partial and is 0. For an empty group L is the lowest number and C is 0.
        """
        wanted = dict.fromkeys(counts)
        self._tables = {n: self._tables[n] if n in self._tables else self._table(n) for n in wanted}
        return torch.stack([self._tables[n] for n in counts])

    def numbers(self, values: Sequence[float]) -> Float[Tensor, "values one"]:
        """Numbers on the device, without an upload, for which the host would wait: filled there, and kept."""
        if len(self._numbers) > MOST_NUMBERS:
            self._numbers = {}
        for value in values:
            if value not in self._numbers:
                self._numbers[value] = torch.full((1,), value, dtype=torch.float64, device=self.device)
        return torch.stack([self._numbers[value] for value in values])

    def _table(self, n: int) -> Float[Tensor, "spreads two slots"]:
        if n == 0:
            empty = torch.zeros(SPREADS, 2, 1 + NODES, device=self.device, dtype=torch.float64)
            empty[:, 0, 1:] = LOWEST
            return empty
        low, high, share = _neighbours(n)
        table = torch.lerp(self._grid(low), self._grid(high), share) if share else self._grid(low).clone()
        table[:, 0, 1:].add_(math.log(n))  # += would copy the result onto itself
        table[:, 1].div_(n)
        return table

    def _grid(self, n: int) -> Tensor:
        if n not in self._grids:
            self._grids[n] = torch.nn.functional.pad(_computed(n), (1, 0)).to(self.device)
        return self._grids[n]


class Bank:
    """The computed tables in one array, for functions that interpolate between two of them themselves.

    Few numbers of positions are computed, so that it hardly grows, and no step has to build tables.
    """

    def __init__(self) -> None:
        self._stored = np.empty((4, SPREADS, 2 * (1 + NODES)))
        self._places: dict[int, int] = {}

    @property
    def array(self) -> NDArray[np.float64]:
        """[tables, spreads, 2·slots]; the last ones may be unused."""
        return self._stored

    def column(self, n: int) -> tuple[int, int, float, float, float]:
        """How the table of n positions follows from the stored ones.

        L is that of the first table, and the share of the way to the second one, plus the fourth number. C/n is the
        same times the fifth number.
        """
        if n == 0:  # as `NodeTables.of`
            place = self._place(1)
            return place, place, 0.0, LOWEST, 0.0
        low, high, share = _neighbours(n)
        return self._place(low), self._place(high), share, math.log(n), 1 / n

    def _place(self, n: int) -> int:
        if n not in self._places:
            count = len(self._places)
            if count == len(self._stored):  # not in place, because a step may be using the array
                self._stored = np.concatenate([self._stored, np.empty_like(self._stored)])
            self._stored[count] = torch.nn.functional.pad(_computed(n), (1, 0)).flatten(1).numpy()
            self._places[n] = count
        return self._places[n]


def position(spread: float) -> float:
    """Where a spread is in a table, in entries."""
    return (math.log2(spread) - FIRST) * PER_DOUBLING
