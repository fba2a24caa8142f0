"""The noise of a modality as a table: log-normaliser and concentration of n noise keys by n and spread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

OCTAVES, PER_OCTAVE = 15, 4.0
SPREADS, PER_UNIT = 65, 8.0


@dataclass(frozen=True)
class NoiseTable:
    """L and C of heal.kernels.noise_world by node, number of positions and spread. Nodes are equally likely."""

    values: Float[Tensor, "nodes two counts spreads"]
    per_octave: float
    """Entries per doubling of the number of positions; the first is for one position."""
    per_unit: float
    """Entries per unit of the spread; the first is for spread 0."""

    @property
    def nodes(self) -> int:
        return self.values.shape[0]

    def lookup(
        self, count: Float[Tensor, "*heads"], spread: Float[Tensor, "*heads"]
    ) -> tuple[Float[Tensor, "nodes *heads"], Float[Tensor, "nodes *heads"]]:
        """L and C, as the kernels read them."""
        _, _, counts, spreads = self.values.shape
        x = (count.clamp(min=1).log2() * self.per_octave).clamp(0, counts - 1)
        y = spread * self.per_unit
        i = x.long().clamp(max=counts - 2)
        j = y.nan_to_num().clamp(max=spreads - 2).long()
        across, along = x - i, y - j
        rows = [
            torch.lerp(self.values[:, :, i + up, j], self.values[:, :, i + up, j + 1], along.expand_as(x))
            for up in (0, 1)
        ]
        found = torch.lerp(rows[0], rows[1], across)
        return found[:, 0], found[:, 1].clamp(min=0)


@cache
def quantile_table(device: torch.device) -> NoiseTable:
    """One node: the scores of n noise keys at the n normal quantiles."""
    spread = torch.arange(SPREADS, dtype=torch.float64) / PER_UNIT
    entries = []
    for step in range(int(OCTAVES * PER_OCTAVE) + 1):
        n = round(2 ** (step / PER_OCTAVE))
        quantiles = torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)
        if n > 1:
            quantiles /= quantiles.std(correction=0)
        scores = spread[:, None] * quantiles
        lse = scores.logsumexp(-1)
        entries.append(torch.stack([lse, ((scores - lse[:, None]).exp() ** 2).sum(-1)]))
    return NoiseTable(torch.stack(entries, dim=1)[None].float().to(device), PER_OCTAVE, PER_UNIT)
