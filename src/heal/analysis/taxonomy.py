"""Head types: redundant, visual, language or synergy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from heal.analysis.information import HeadScores
from heal.analysis.outliers import far_below

MAD = 2 * 1.4826
"""Two standard deviations of a normal distribution, in units of its median absolute deviation."""


EQUAL_LOGITS = 1e-5
"""Logits of α_vis that differ by less are equal, so that rounding does not decide if most heads share a logit."""


class HeadType(IntEnum):
    """The type of a head at one step."""

    CAUSAL_REDUNDANT = 0
    INFO_REDUNDANT = 1
    VISUAL = 2
    LANGUAGE = 3
    SYNERGY = 4
    UNKNOWN = 255

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, eq=False)
class HeadMap:
    """The types of all heads, of one or several rows."""

    types: UInt8[Tensor, "*rows layers heads"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeadMap) and torch.equal(self.types, other.types)

    __hash__ = None  # type: ignore[assignment]

    def mask(self, kind: HeadType) -> Bool[Tensor, "*rows layers heads"]:
        return self.types == int(kind)

    def count(self, kind: HeadType) -> int:
        return int(self.mask(kind).sum())

    def counts(self) -> dict[str, int]:
        return {kind.label: self.count(kind) for kind in HeadType}

    def agreement(self, other: HeadMap) -> float:
        """The share of heads with the same type."""
        return float((self.types == other.types).float().mean())


def classify(
    scores: HeadScores,
    causal_redundant: Bool[Tensor, "rows layers heads"],
    mad: float = MAD,
    sigma: float = 3.0,
    considered: Bool[Tensor, "layers heads"] | None = None,
    yeo_johnson: bool = False,
) -> HeadMap:
    """Head types from scores [rows, layers, heads]. Each row is classified from its own heads.

    Heads more than sigma standard deviations below the mean are information redundant (∞: none). mad is λ of the cut
    on logit(α_vis) (∞: every mixed head is synergy). Heads that are not `considered` are unknown and not part of the
    statistics.
    """
    total = scores.total
    taken = ~causal_redundant
    if considered is not None:
        taken &= considered
    poor = far_below(torch.where(taken, total, torch.nan).flatten(1), sigma, yeo_johnson).view_as(total)
    live = taken & ~poor
    visual, language = scores.visual > 0, scores.language > 0
    mixed = live & visual & language
    x = torch.where(mixed, (scores.visual / scores.language).log(), torch.nan)
    median, spread = _median_and_mad(x)
    cut = (mad * spread).clamp(min=EQUAL_LOGITS)  # ∞ · 0 is NaN, and no comparison with NaN holds
    leans_visual, leans_language = x > median + cut, x < median - cut

    types = torch.full(total.shape, int(HeadType.INFO_REDUNDANT), dtype=torch.uint8, device=total.device)
    types[causal_redundant] = int(HeadType.CAUSAL_REDUNDANT)
    types[(live & visual & ~language) | (mixed & leans_visual)] = int(HeadType.VISUAL)
    types[(live & ~visual & language) | (mixed & leans_language)] = int(HeadType.LANGUAGE)
    types[mixed & ~leans_visual & ~leans_language] = int(HeadType.SYNERGY)
    if considered is not None:
        types[(~considered).expand_as(types)] = int(HeadType.UNKNOWN)
    return HeadMap(types)


def _median_and_mad(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per row over all heads, ignoring NaN. The median of an even number is the mean of the middle two."""
    flat = x.flatten(1)
    median = flat.nanquantile(0.5, dim=1, keepdim=True)
    spread = (flat - median).abs().nanquantile(0.5, dim=1, keepdim=True)
    return median.unsqueeze(-1), spread.unsqueeze(-1)
