"""First and second moments of cached keys and values, per position group.

They are stored as running mean and sum of squared deviations (Welford), because a difference of sums would lose the
variance of keys with a large bias, and because recomputing them from the cache at every step would dominate the cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from heal.analysis.split import Regions

MASKED_GROUPS = 2  # visual and language; neutral positions are never replaced and need no moments


@dataclass
class Moments:
    """count [rows, groups]; mean and squared [rows, groups, kv_heads, 2 (key, value), dim]."""

    stored: Float[Tensor, "rows groups"]
    mean: Float[Tensor, "rows groups kv_heads two dim"]
    squared: Float[Tensor, "rows groups kv_heads two dim"]
    grown: dict[int, int] = field(default_factory=dict, kw_only=True)
    """Counts of groups that grew alike in every row. They are not in `stored` yet: few steps need them there."""

    @property
    def count(self) -> Float[Tensor, "rows groups"]:
        for name, count in self.grown.items():
            self.stored[:, name] = count
        self.grown.clear()
        return self.stored

    @classmethod
    def of(
        cls,
        key: Float[Tensor, "rows kv_heads positions dim"],
        value: Float[Tensor, "rows kv_heads positions dim"],
        regions: Regions,
    ) -> Moments:
        """From the whole cache, for prompts and sliding windows."""
        count = regions.masks[:, :MASKED_GROUPS].sum(-1).float()
        pairs = [_moments_of(states, regions, count) for states in (key, value)]
        mean, squared = (torch.stack([pair[i] for pair in pairs], dim=3) for i in (0, 1))
        return cls(count, mean, squared)

    def append(
        self,
        key: Float[Tensor, "rows kv_heads dim"],
        value: Float[Tensor, "rows kv_heads dim"],
        member: Bool[Tensor, "rows groups"],
    ) -> None:
        """Add one position, in place."""
        weight = member[:, :MASKED_GROUPS].to(self.count.dtype)
        self.count.add_(weight)
        # a group that does not grow has share 0 and is unchanged
        share = (weight / self.count.clamp(min=1))[..., None, None, None]
        delta = torch.stack([key, value], dim=2).float().unsqueeze(1) - self.mean
        self.mean.addcmul_(delta, share)
        # δ·(new − mean′) = δ²·(1 − 1/n)
        self.squared.addcmul_(delta.square_(), weight[..., None, None, None] - share)

    def append_to(
        self,
        name: int,
        key: Float[Tensor, "rows kv_heads dim"],
        value: Float[Tensor, "rows kv_heads dim"],
        count: int,
    ) -> None:
        """`append` if group `name` grows to `count` in every row: the usual case, with half the operations."""
        mean = self.mean[:, name]
        delta = torch.stack([key, value], dim=2).float().sub_(mean)
        mean.add_(delta, alpha=1 / count)
        self.squared[:, name].addcmul_(delta, delta, value=1 - 1 / count)
        self.grown[name] = count

    def remove(
        self,
        key: Float[Tensor, "rows kv_heads dim"],
        value: Float[Tensor, "rows kv_heads dim"],
        member: Bool[Tensor, "rows groups"],
    ) -> None:
        """The inverse of `append`, in place."""
        weight = member[:, :MASKED_GROUPS].to(self.count.dtype)
        self.count.sub_(weight)
        old = torch.stack([key, value], dim=2).float().unsqueeze(1)
        delta = old - self.mean
        self.mean -= delta * (weight / self.count.clamp(min=1))[..., None, None, None]
        self.squared -= delta * (old - self.mean) * weight[..., None, None, None]
        self.mean.masked_fill_((self.count == 0)[..., None, None, None], 0.0)
        # one position has no variance, and the square root would amplify the remaining rounding error
        self.squared.masked_fill_((self.count <= 1)[..., None, None, None], 0.0).clamp_(min=0.0)

    def select(self, rows: Tensor) -> Moments:
        """`rows` on the device of the moments."""
        return Moments(*(t.index_select(0, rows) for t in (self.count, self.mean, self.squared)))

    @property
    def variance(self) -> Float[Tensor, "rows groups kv_heads two dim"]:
        return self.squared / self.count.clamp(min=1)[..., None, None, None]

    @property
    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Mean, squared and count in the same memory, on a CPU."""
        if self.grown:
            _ = self.count  # written to `stored`
        return self._arrays

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        return self.mean.numpy(), self.squared.numpy(), self.stored.numpy()

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.stored, self.mean, self.squared))


def _moments_of(states: Tensor, regions: Regions, count: Tensor) -> tuple[Tensor, Tensor]:
    if regions.spans is not None:
        return _moments_by_spans(states, regions.spans, count)
    masks = regions.masks[:, :MASKED_GROUPS].to(torch.float32)
    states = states.float()
    n = count.clamp(min=1)[:, :, None, None]
    mean = torch.einsum("bml,bhld->bmhd", masks, states) / n
    squared = [
        torch.einsum("bl,bhld->bhd", masks[:, m], (states - mean[:, m, :, None]).square())
        for m in range(MASKED_GROUPS)
    ]
    return mean, torch.stack(squared, dim=1)


def _moments_by_spans(
    states: Tensor, spans: tuple[tuple[int, int, int], ...], count: Tensor
) -> tuple[Tensor, Tensor]:
    shape = (states.shape[0], states.shape[1], states.shape[3])
    means, squares = [], []
    for name in range(MASKED_GROUPS):
        slices = [states[:, :, a:b].float() for a, b, group in spans if group == name]
        n = count[:, name].clamp(min=1)[:, None, None]
        mean = sum((s.sum(2) for s in slices), start=states.new_zeros(shape, dtype=torch.float32)) / n
        squared = sum(
            ((s - mean[:, :, None]).square().sum(2) for s in slices),
            start=states.new_zeros(shape, dtype=torch.float32),
        )
        means.append(mean)
        squares.append(squared)
    return torch.stack(means, dim=1), torch.stack(squares, dim=1)
