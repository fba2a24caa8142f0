"""Expected counterfactual scores: the mean over all noise draws, without a draw.

The scores of noise keys are normal. Their normaliser is represented by K equally likely values, which a table holds
for each number of positions and each spread (`lognormal`). The noise in the values enters by its expected square: for
H = μ + ε, E cos(h, H) ≈ h·μ / (‖h‖ √(‖μ‖² + E‖ε‖²)). Every state is a mixture of two of the vectors v, l (the real
partials) and μ_v, μ_l (the mean values), so all similarities follow from the inner products of these vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from heal.analysis.counterfactual import Attended, Covariance
from heal.analysis.information import Measure
from heal.analysis.lognormal import NODES, PER_DOUBLING, SPREADS, NodeTables, position
from heal.analysis.moments import MASKED_GROUPS, Moments
from heal.analysis.split import LANGUAGE, LOWEST, TINY, VISUAL, Regions, Split, attention_scores, capped, group

SLOTS = 1 + NODES
"""The real partial and the K cases of its noise."""
VECTORS = 5  # h, v, l, μ_v, μ_l; with neutral positions their partial is the sixth
STEEPNESS = PER_DOUBLING / (SPREADS - 1)
"""Change of the table coordinate, from −1 to 1, for each doubling of s²."""
ENTRIES_PER_DOUBLING = PER_DOUBLING / 2
"""Entries of a table for each doubling of s²."""


@dataclass(frozen=True, eq=False)
class StepTables:
    """What the layers of one step share: a table for each number of positions, of each row if rows differ."""

    counts: tuple[tuple[int, ...], ...]
    scale: float
    source: NodeTables
    grids: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, regions: Regions, scale: float, source: NodeTables) -> StepTables:
        even = all(row == regions.counts[0] for row in regions.counts)
        counts = tuple(row[:MASKED_GROUPS] for row in (regions.counts[:1] if even else regions.counts))
        return cls(counts, scale, source)

    @cached_property
    def _flat(self) -> list[int]:
        return [n for row in self.counts for n in row]

    @cached_property
    def tables(self) -> Float[Tensor, "tables spreads two slots"]:
        return self.source.of(self._flat)

    @cached_property
    def offset(self) -> Float[Tensor, "tables one"]:
        """Table coordinate of s² = 1, where s² is the sum over channels of q²·Σ(k − μ)²."""
        return self.source.numbers([_coordinate(self.scale / math.sqrt(max(n, 1))) for n in self._flat])

    def look_up(
        self, spread: Float[Tensor, "rows kv_heads group two"], divided: bool = False
    ) -> Float[Tensor, "rows kv_heads group two pair slots"]:
        """L and C/n for the squared spreads of each row, head and position group."""
        rows, kv_heads, queries, _ = spread.shape
        even = len(self.counts) == 1
        grid, where = self._grid(rows, kv_heads, queries)
        torch.log2(spread, out=where)
        offset = self.plain_offset if divided else self.offset
        torch.add(offset, grid[:, 0, :, 0], alpha=STEEPNESS, out=grid[:, 0, :, 0])
        # one operation that interpolates, and takes the border for spreads outside of the table
        found = grid_sample(self._channels, grid, mode="bilinear", padding_mode="border", align_corners=True)
        if even:
            return found.view(MASKED_GROUPS, 2, SLOTS, rows, kv_heads, queries).permute(3, 4, 5, 0, 1, 2)
        return found.view(rows, MASKED_GROUPS, 2, SLOTS, kv_heads, queries).permute(0, 4, 5, 1, 2, 3)

    @cached_property
    def plain_offset(self) -> Float[Tensor, "one one"]:
        """`offset` for s² that is already divided by n, of every table."""
        return torch.full((1, 1), _coordinate(1.0), dtype=torch.float64, device=self.source.device)

    @cached_property
    def banked(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The bank of tables, and its columns [rows or 1, two, 6] for each row and group.

        The sixth number is `offset` in entries of a table.
        """
        found = {
            n: (*self.source.bank.column(n), position(self.scale / math.sqrt(max(n, 1)))) for n in set(self._flat)
        }
        columns = np.array([found[n] for n in self._flat]).reshape(-1, MASKED_GROUPS, 6)
        return self.source.bank.array, columns

    @cached_property
    def single(self) -> tuple[Float[Tensor, "rows two spreads pair slots"], Float[Tensor, "rows two"]]:
        """`array` and `positions` in fp32 on the device. One row if all rows are alike."""
        tables = self.tables.float().unflatten(0, (-1, MASKED_GROUPS))
        return tables, ((self.offset + 1) * ((SPREADS - 1) / 2)).float().view(-1, MASKED_GROUPS)

    @cached_property
    def _channels(self) -> Float[Tensor, "tables channels one spreads"]:
        return self.tables.permute(0, 2, 3, 1).flatten(1, 2).unsqueeze(2)

    def _grid(self, rows: int, kv_heads: int, queries: int) -> tuple[Tensor, Tensor]:
        """A buffer for the coordinates (x, 0) of every table, and x as [rows, kv_heads, group, two].

        The layers use it one after the other.
        """
        shape = (rows, kv_heads, queries)
        if shape not in self.grids:
            even = len(self.counts) == 1
            width = kv_heads * queries * (rows if even else 1)
            grid = torch.zeros(len(self.offset), 1, width, 2, dtype=torch.float64, device=self.offset.device)
            x = grid[:, 0, :, 0]
            if even:
                x = x.view(MASKED_GROUPS, rows, kv_heads, queries).permute(1, 2, 3, 0)
            else:
                x = x.view(rows, MASKED_GROUPS, kv_heads, queries).permute(0, 2, 3, 1)
            self.grids[shape] = grid, x
        return self.grids[shape]


def _coordinate(spread: float) -> float:
    """A spread as a coordinate of grid_sample: −1 at the first entry of a table, 1 at the last."""
    return 2 * position(spread) / (SPREADS - 1) - 1


@lru_cache(maxsize=16)
def entries(vectors: int, device: torch.device) -> Int[Tensor, " entries"]:
    """Which inner products of the vectors h, v, l, μ_v, μ_l (and r) the states need.

    They are h·h, h·x, h·y, x·x, y·y, x·y for the slots x of the visual and y of the language group. With a neutral
    vector r follow h·r, r·r, x·r, y·r.
    """
    visual, language = [1] + [3] * NODES, [2] + [4] * NODES
    pairs = [(0, 0)]
    pairs += [(0, x) for x in visual] + [(0, y) for y in language]
    pairs += [(x, x) for x in visual] + [(y, y) for y in language]
    pairs += [(x, y) for x in visual for y in language]
    if vectors > VECTORS:
        pairs += [(0, 5), (5, 5)] + [(x, 5) for x in visual] + [(y, 5) for y in language]
    return torch.tensor([a * vectors + b for a, b in pairs], device=device)


@lru_cache(maxsize=4)
def _differences(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The linear map from the similarities of all states to visual, language and total information: its weights, its
    offset, and half of the offset for the cosine."""
    weight = torch.zeros(SLOTS, SLOTS, 3, dtype=torch.float64)
    weight[0, 1:, 0] = 1 / NODES  # the visual group real, the language group noise
    weight[1:, 0, 1] = 1 / NODES
    weight[1:, 1:] -= 1 / NODES**2
    offset = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    return weight.view(1, -1, 3).to(device), offset.view(1, 1, 3).to(device), (offset / 2).view(1, 1, 3).to(device)


def expected_scores(
    at: Attended,
    moments: Moments,
    tables: StepTables,
    measure: Measure = "cosine",
    covariance: Covariance = "diagonal",
) -> Float[Tensor, "rows kv_heads group three"]:
    """Visual, language and total information of every head, in fp64: means over the K cases of each group."""
    real = at.real
    lse, concentration = _cases(at, moments, tables, covariance)
    products = _Products.of(moments, real, concentration)
    share = torch.sigmoid(lse[..., VISUAL, :, None] - lse[..., LANGUAGE, None, :])
    along = torch.lerp(products.hy.expand_as(share), products.hx.expand_as(share), share)
    squared = torch.lerp(
        torch.lerp(products.yy.expand_as(share), products.xy, share),
        torch.lerp(products.xy, products.xx.expand_as(share), share),
        share,
    )
    if products.neutral is not None:
        along, squared = products.neutral.added(along, squared, share, lse, real)
    return _information(along, squared, products.hh, measure)


def _cases(at: Attended, moments: Moments, tables: StepTables, covariance: Covariance) -> tuple[Tensor, Tensor]:
    """The log-normalisers of all slots, and C/n of their noise (0 for the real partial)."""
    real, grouped = at.real, group(at.query.float(), at.key.shape[1])
    if covariance == "diagonal" and at.softcap is None:
        mean, squared = moments.mean[:, :, :, 0], moments.squared[:, :, :, 0]
        centre = torch.matmul(grouped, mean.permute(0, 2, 3, 1))
        spread = torch.matmul(grouped.square(), squared.permute(0, 2, 3, 1))
        found = tables.look_up(spread)
        scale = at.scale
    else:
        centre, spread = _centre_and_spread(at, moments, covariance)
        found = tables.look_up(spread, divided=True)
        scale = 1.0
    normaliser, concentration = found.unbind(-2)
    lse = torch.empty(normaliser.shape, dtype=normaliser.dtype, device=normaliser.device)
    torch.add(normaliser, centre.unsqueeze(-1), alpha=scale, out=lse)
    lse[..., 0].copy_(real.finite[..., :MASKED_GROUPS])
    return lse, concentration


def _centre_and_spread(at: Attended, moments: Moments, covariance: Covariance) -> tuple[Tensor, Tensor]:
    """Mean and variance of the noise scores of each group, with full covariance or a soft cap."""
    grouped = group(at.query.float() * at.scale, at.key.shape[1])
    if covariance == "full":
        # qᵀΣq is the variance of the real scores
        scores = attention_scores(at.query, at.key, at.scale)
        masks = at.regions.masks[:, None, None, :MASKED_GROUPS]
        count = moments.count.clamp(min=1)[:, None, None]
        centre = (scores.unsqueeze(3) * masks).sum(-1) / count
        spread = ((scores.unsqueeze(3) - centre.unsqueeze(-1)).square() * masks).sum(-1) / count
    else:
        centre = torch.matmul(grouped, moments.mean[:, :, :, 0].permute(0, 2, 3, 1))
        spread = torch.matmul(grouped.square(), moments.variance[:, :, :, 0].permute(0, 2, 3, 1))
    if at.softcap is None:
        return centre, spread
    # the capped scores are no longer normal: their mean and variance, by quadrature
    points, weights = _quadrature(centre.device)
    scores = capped(centre.unsqueeze(-1) + spread.sqrt().unsqueeze(-1) * points, at.softcap)
    centre = torch.matmul(scores, weights)
    return centre, torch.matmul((scores - centre.unsqueeze(-1)).square(), weights)


@lru_cache(maxsize=4)
def _quadrature(device: torch.device) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite points and weights for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(16)
    return (
        torch.tensor(points, dtype=torch.float32, device=device),
        torch.tensor(weights / weights.sum(), dtype=torch.float32, device=device),
    )


@dataclass(frozen=True, eq=False)
class _Products:
    """Inner products of h with the slots x (visual) and y (language) of all states, and among the slots."""

    hh: Tensor
    hx: Float[Tensor, "rows kv_heads group slots one"]
    hy: Float[Tensor, "rows kv_heads group one slots"]
    xx: Float[Tensor, "rows kv_heads group slots one"]
    yy: Float[Tensor, "rows kv_heads group one slots"]
    xy: Float[Tensor, "rows kv_heads group slots slots"]
    neutral: _Neutral | None

    @classmethod
    def of(cls, moments: Moments, real: Split, concentration: Tensor) -> _Products:
        rows, kv_heads, queries, groups, dim = real.values.shape
        means = moments.mean[:, :, :, 1].permute(0, 2, 1, 3).unsqueeze(2)
        parts = [real.output, real.values[..., :MASKED_GROUPS, :], means.expand(rows, kv_heads, queries, -1, dim)]
        if groups > MASKED_GROUPS:
            parts.append(real.values[..., MASKED_GROUPS:, :])
        vectors = torch.cat(parts, dim=-2).double()  # in fp32 the differences of similarities lose too much
        gram = torch.matmul(vectors, vectors.transpose(-1, -2)).flatten(-2)
        found = gram.index_select(-1, entries(vectors.shape[-2], vectors.device))
        sizes = [1, *[SLOTS] * 4, SLOTS**2]
        if groups > MASKED_GROUPS:
            sizes += [1, 1, SLOTS, SLOTS]
        hh, hx, hy, _, _, xy, *rest = found.split(sizes, dim=-1)
        # noise in the values adds Σσ²·C to the square of its mean
        variance = moments.squared[:, :, :, 1].sum(-1, dtype=torch.float64).transpose(1, 2)[:, :, None, :, None]
        own = torch.addcmul(
            found[..., 1 + 2 * SLOTS : 1 + 4 * SLOTS].unflatten(-1, (2, SLOTS)), concentration, variance
        )
        return cls(
            hh.unsqueeze(-1),
            hx.unsqueeze(-1),
            hy.unsqueeze(-2),
            own[..., VISUAL, :, None],
            own[..., LANGUAGE, None, :],
            xy.unflatten(-1, (SLOTS, SLOTS)),
            _Neutral(*rest) if rest else None,
        )


@dataclass(frozen=True, eq=False)
class _Neutral:
    """Inner products with the partial r of the neutral positions, which is real in every state."""

    hr: Tensor
    rr: Tensor
    xr: Tensor
    yr: Tensor

    def added(self, along: Tensor, squared: Tensor, share: Tensor, lse: Tensor, real: Split) -> tuple[Tensor, Tensor]:
        """The products of the states after the neutral partial was merged into them."""
        both = torch.logaddexp(lse[..., VISUAL, :, None], lse[..., LANGUAGE, None, :])
        own = torch.sigmoid(real.lse[..., MASKED_GROUPS, None, None].clamp(min=LOWEST) - both)
        cross = torch.lerp(self.yr.unsqueeze(-2).expand_as(share), self.xr.unsqueeze(-1).expand_as(share), share)
        hr, rr = self.hr.unsqueeze(-1).expand_as(share), self.rr.unsqueeze(-1).expand_as(share)
        squared = torch.lerp(torch.lerp(squared, cross, own), torch.lerp(cross, rr, own), own)
        return torch.lerp(along, hr, own), squared


def _information(along: Tensor, squared: Tensor, length: Tensor, measure: Measure) -> Tensor:
    """Visual, language and total information from h·H and E‖H‖² of all states, and ‖h‖²."""
    weight, offset, half = _differences(along.device)
    cosine = along * (squared * length).clamp_(min=TINY).rsqrt_()
    if measure == "cosine":
        return _combined(cosine, weight, half, 0.5)
    distance = (length - 2 * along + squared).clamp_(min=0).sqrt() / (length.sqrt() + squared.sqrt()).clamp_(min=TINY)
    similarity = 1 - torch.tanh(distance / 2)
    if measure == "cosine+l2":
        similarity = (similarity + (1 + cosine) / 2) / 2
    return _combined(similarity, weight, offset, 1.0)


def _combined(states: Tensor, weight: Tensor, offset: Tensor, factor: float) -> Tensor:
    heads = states.shape[:-2]
    flat = states.reshape(1, -1, SLOTS**2)
    return torch.baddbmm(offset, flat, weight, alpha=factor).view(*heads, 3)
