"""Cosine similarity of vectors to the hidden states of the visual tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from heal.analysis.depths import SUMMARIES, TOP


@dataclass(frozen=True, eq=False)
class VisualStates:
    """The hidden states of the visual tokens, as unit vectors. Shorter prompts are padded."""

    unit: Float[Tensor, "samples depths positions dim"]
    mask: Bool[Tensor, "samples positions"]

    @classmethod
    def of(
        cls, hidden: Sequence[Float[Tensor, "samples length dim"]], visual: Bool[Tensor, "samples length"]
    ) -> VisualStates:
        """From the hidden states of a prompt at each depth. `visual`: the positions of visual tokens."""
        device = hidden[-1].device
        visual = visual.to(device)
        order = (~visual).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(visual.sum(1).max())]
        rows = torch.arange(len(visual), device=device)[:, None]
        found = [normalize(states.to(device)[rows, order].float(), dim=-1).to(states.dtype) for states in hidden]
        return cls(torch.stack(found, dim=1), visual.gather(1, order))

    def joined(self, later: VisualStates) -> VisualStates:
        """With those of a later prompt of the same conversations."""
        return VisualStates(torch.cat([self.unit, later.unit], dim=2), torch.cat([self.mask, later.mask], dim=1))

    def compared(
        self, vectors: Float[Tensor, "vectors depths dim"], samples: Sequence[int]
    ) -> Float[Tensor, "vectors depths summaries"]:
        """The similarity of each vector to the visual tokens of its sample. NaN for a sample without any."""
        if list(samples) == list(range(len(self.unit))):
            return self._summarised(vectors.to(self.unit.device).unsqueeze(1), slice(None))[:, 0]
        found = torch.full((*vectors.shape[:2], len(SUMMARIES)), torch.nan, device=self.unit.device)
        at = torch.tensor(samples)
        for sample in set(samples):
            own = (at == sample).to(self.unit.device)
            found[own] = self._summarised(vectors.to(self.unit.device)[own].unsqueeze(0), slice(sample, sample + 1))[
                0
            ]
        return found

    def _summarised(
        self, vectors: Float[Tensor, "samples each depths dim"], samples: slice
    ) -> Float[Tensor, "samples each depths summaries"]:
        unit, mask = self.unit[samples], self.mask[samples]
        own = normalize(vectors.float(), dim=-1).to(unit.dtype).transpose(1, 2)
        cosine = torch.matmul(own, unit.transpose(-1, -2)).float()  # [samples, depths, each, positions]
        if not cosine.shape[-1]:
            return cosine.new_full((*vectors.shape[:-1], len(SUMMARIES)), torch.nan)
        known = mask[:, None, None]
        count = mask.sum(1)[:, None, None]
        best = cosine.masked_fill(~known, -torch.inf).topk(min(TOP, cosine.shape[-1]), dim=-1).values
        kept = best.isfinite()
        top = torch.where(kept, best, 0.0).sum(-1) / kept.sum(-1)
        mean = torch.where(known, cosine, 0.0).sum(-1) / count
        largest = best[..., 0].masked_fill(count == 0, torch.nan)
        return torch.stack([largest, top, mean], dim=-1).transpose(1, 2)
