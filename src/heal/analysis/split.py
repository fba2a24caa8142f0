"""Attention split by position group.

A `Partial` is softmax attention over one position group: the weighted mean of its values and the logarithm of its
normaliser. Partials of disjoint groups merge exactly into attention over their union. The normaliser is stored as a
logarithm, so that groups cannot overflow or underflow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny
LOWEST = torch.finfo(torch.float32).min / 4

FUSED = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""The CPU kernel of sdpa. It is private to torch and may be missing."""

VISUAL, LANGUAGE, NEUTRAL = 0, 1, 2
"""Position groups. Neutral positions (optionally the sinks) are attended, but never masked or scaled."""

UNATTENDED = 255
"""The group of a position that the newest query does not attend: padding, or outside of a sliding window."""


@dataclass(frozen=True)
class Partial:
    """Attention over one group: `value` is its softmax mean, `lse` the logarithm of its normaliser (−inf: empty)."""

    value: Float[Tensor, "rows heads dim"]
    lse: Float[Tensor, "rows heads"]


@dataclass(frozen=True)
class Regions:
    """The position group of every cached position for each row. Padding is in no group.

    `counts` (by row and group) and `spans` are stored on the host, so that no step has to wait for the device.
    `spans` is a list of (start, stop, group) if all rows agree, because slices are cheaper than masks.
    """

    masks: Bool[Tensor, "rows groups positions"]
    counts: tuple[tuple[int, ...], ...]
    spans: tuple[tuple[int, int, int], ...] | None

    @classmethod
    def of(cls, masks: Bool[Tensor, "rows groups positions"]) -> Regions:
        counts = tuple(tuple(row) for row in masks.sum(-1).tolist())
        return cls(masks, counts, _common_spans(masks))

    @property
    def length(self) -> int:
        return self.masks.shape[-1]

    @property
    def group_count(self) -> int:
        return self.masks.shape[1]

    def longest(self, name: int) -> int:
        return max(row[name] for row in self.counts)

    def even(self, name: int) -> bool:
        return len({row[name] for row in self.counts}) == 1

    @cached_property
    def has_empty(self) -> bool:
        """Whether a group of a row has no position."""
        return any(n == 0 for row in self.counts for n in row)

    @cached_property
    def codes(self) -> NDArray[np.uint8]:
        """[rows, positions] the group of each position; 255 where a position is in none."""
        masks = self.masks.cpu().numpy()
        return np.where(masks.any(1), masks.argmax(1), UNATTENDED).astype(np.uint8)

    @cached_property
    def labels(self) -> UInt8[Tensor, "rows positions"]:
        """`codes` on the device, without waiting for it."""
        found = torch.full_like(self.masks[:, 0], UNATTENDED, dtype=torch.uint8)
        for name in range(self.group_count):
            found.masked_fill_(self.masks[:, name], name)
        return found

    @cached_property
    def empty(self) -> Bool[Tensor, "rows groups"]:
        return ~self.masks.any(-1)

    def bias(self, queries: int) -> Float[Tensor, "rows one queries_groups positions"]:
        """The mask of sdpa for `queries` copies of a query for each group: 0 in the group, −inf elsewhere."""
        if queries not in self._biases:
            own = torch.zeros(self.masks.shape, device=self.masks.device).masked_fill_(~self.masks, -torch.inf)
            self._biases[queries] = own.unsqueeze(1).repeat(1, 1, queries, 1)
        return self._biases[queries]

    @cached_property
    def _biases(self) -> dict[int, Tensor]:
        return {}

    def extended(self, groups: Sequence[int]) -> Regions:
        """Add one position with the given group for each row (−1: no group)."""
        member = torch.tensor([[m == group for m in range(self.group_count)] for group in groups])
        masks = torch.cat([self.masks, member.to(self.masks.device).unsqueeze(-1)], dim=-1)
        counts = tuple(
            tuple(n + (m == group) for m, n in enumerate(row)) for row, group in zip(self.counts, groups, strict=True)
        )
        spans = self.spans
        if spans is not None:
            spans = grown_spans(spans, self.length, groups[0]) if len(set(groups)) == 1 else None
        return Regions(masks, counts, spans)

    def select(self, rows: Sequence[int]) -> Regions:
        index = torch.tensor(rows, device=self.masks.device)
        return Regions(self.masks.index_select(0, index), tuple(self.counts[r] for r in rows), self.spans)


def grown_spans(spans: tuple[tuple[int, int, int], ...], at: int, group: int) -> tuple[tuple[int, int, int], ...]:
    if group < 0:
        return spans
    if spans and spans[-1][1] == at and spans[-1][2] == group:
        return (*spans[:-1], (spans[-1][0], at + 1, group))
    return (*spans, (at, at + 1, group))


def _common_spans(masks: Tensor) -> tuple[tuple[int, int, int], ...] | None:
    if not bool((masks == masks[:1]).all()):
        return None
    first = masks[0]
    groups = torch.where(first.any(0), first.to(torch.uint8).argmax(0), -1).tolist()
    spans: tuple[tuple[int, int, int], ...] = ()
    for at, group in enumerate(groups):
        spans = grown_spans(spans, at, group)
    return spans


def group(query: Float[Tensor, "rows heads dim"], kv_heads: int) -> Float[Tensor, "rows kv_heads group dim"]:
    """Query heads grouped by the key/value head that they share."""
    return query.view(query.shape[0], kv_heads, -1, query.shape[-1])


def capped(scores: Float[Tensor, "*heads positions"], softcap: float | None) -> Float[Tensor, "*heads positions"]:
    """cap·tanh(s/cap), as Gemma 2 bounds its scores before mask and softmax. None: unchanged."""
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def attention_scores(
    query: Float[Tensor, "rows heads dim"], key: Float[Tensor, "rows kv_heads positions dim"], scale: float
) -> Float[Tensor, "rows kv_heads group positions"]:
    """Scaled q·k without a cap, always in fp32: half-precision scores reduce quality measurably."""
    grouped = group(query.float() * scale, key.shape[1])
    if key.dtype == torch.float32 or not key.is_cuda:
        if grouped.shape[2] == 1:  # K qᵀ reads the keys in memory order: a third faster than q Kᵀ on a CPU
            return torch.matmul(key.float(), grouped.transpose(-1, -2)).transpose(-1, -2)
        return torch.matmul(grouped, key.float().transpose(-1, -2))
    # accumulate and return fp32 without an fp32 copy of the keys
    rows, kv_heads, positions, dim = key.shape
    flat = torch.bmm(
        group(query, kv_heads).to(key.dtype).reshape(rows * kv_heads, -1, dim),
        key.reshape(rows * kv_heads, positions, dim).transpose(-1, -2),
        out_dtype=torch.float32,
    )
    return flat.view(rows, kv_heads, -1, positions) * scale


def weighted_values(
    weights: Float[Tensor, "rows kv_heads group positions"],
    value: Float[Tensor, "rows kv_heads positions dim"],
) -> Float[Tensor, "rows kv_heads group dim"]:
    """Σ_j w_j v_j in fp32, without an fp32 copy of the values if the device can accumulate in fp32."""
    if value.dtype == torch.float32 or not value.is_cuda:
        return torch.matmul(weights, value.float())
    rows, kv_heads, positions, dim = value.shape
    flat = torch.bmm(
        weights.to(value.dtype).reshape(rows * kv_heads, -1, positions),
        value.reshape(rows * kv_heads, positions, dim),
        out_dtype=torch.float32,
    )
    return flat.view(rows, kv_heads, -1, dim)


@dataclass(frozen=True, eq=False)
class Split:
    """The partials of all groups as two tensors, and the output that they make together."""

    values: Float[Tensor, "rows kv_heads group groups dim"]
    lse: Float[Tensor, "rows kv_heads group groups"]
    has_empty: bool = True
    """Whether a row may have an empty group, whose log-normaliser is −∞."""

    @classmethod
    def of(cls, partials: Sequence[Partial], kv_heads: int, has_empty: bool = True) -> Split:
        values = torch.stack([p.value for p in partials], dim=2).unflatten(1, (kv_heads, -1))
        lse = torch.stack([p.lse for p in partials], dim=2).unflatten(1, (kv_heads, -1))
        return cls(values, lse, has_empty)

    def partials(self) -> list[Partial]:
        values, lse = self.values.flatten(1, 2), self.lse.flatten(1, 2)
        return [Partial(values[:, :, m], lse[:, :, m]) for m in range(lse.shape[-1])]

    @cached_property
    def finite(self) -> Float[Tensor, "rows kv_heads group groups"]:
        """The log-normalisers, with the lowest number for empty groups."""
        return self.lse.clamp(min=LOWEST) if self.has_empty else self.lse

    @cached_property
    def shares(self) -> Float[Tensor, "rows kv_heads group groups"]:
        """The share of attention of each group."""
        return self.finite.softmax(-1)

    @cached_property
    def output(self) -> Float[Tensor, "rows kv_heads group one dim"]:
        """The plain output."""
        return torch.matmul(self.shares.unsqueeze(-2), self.values)

    def scaled(self, factors: Float[Tensor, "rows kv_heads group two"]) -> Float[Tensor, "rows one heads dim"]:
        """The output with the values of the visual and the language group scaled."""
        if factors.shape == self.shares.shape:
            shares = torch.mul(self.shares, factors, out=torch.empty_like(self.shares))
        else:  # neutral positions are never scaled
            shares = self.shares.clone()
            shares[..., : factors.shape[-1]].mul_(factors)
        return torch.matmul(shares.unsqueeze(-2), self.values).flatten(1, 2).transpose(1, 2)


def split_attention(
    query: Float[Tensor, "rows heads dim"],
    key: Float[Tensor, "rows kv_heads positions dim"],
    value: Float[Tensor, "rows kv_heads positions dim"],
    regions: Regions,
    scale: float,
    softcap: float | None = None,
) -> list[Partial]:
    """One partial per group, in one pass over keys and values."""
    if softcap is None and FUSED is not None and _fits(key, query, value):
        if query.shape[1] != key.shape[1]:
            return _split_grouped(query, key, value, regions, scale).partials()
        if regions.spans is not None:
            return _split_fused(query, key, value, regions, scale)
    scores = capped(attention_scores(query, key, scale), softcap)
    if regions.spans is None:
        return _split_by_masks(scores, value, regions)
    return _split_by_spans(scores, value, regions)


def split_stacked(
    query: Tensor, key: Tensor, value: Tensor, regions: Regions, scale: float, softcap: float | None = None
) -> Split:
    """`split_attention` as two tensors."""
    if softcap is None and FUSED is not None and query.shape[1] != key.shape[1] and _fits(query, key, value):
        return _split_grouped(query, key, value, regions, scale)
    partials = split_attention(query, key, value, regions, scale, softcap)
    return Split.of(partials, key.shape[1], regions.has_empty)


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch's fused kernel can be used."""
    return (
        key.device.type == "cpu"
        and query.dtype == key.dtype == value.dtype == torch.float32
        and key.shape[-1] == value.shape[-1]
    )


def _split_grouped(query: Tensor, key: Tensor, value: Tensor, regions: Regions, scale: float) -> Split:
    """One call of the kernel of sdpa: the query of each head once for each position group, with a mask of the group.

    Query heads that share keys and values are further queries of one head: one pass over keys and values is enough.
    """
    assert FUSED is not None
    rows, kv_heads, _, dim = key.shape
    groups, queries = regions.group_count, query.shape[1] // kv_heads
    repeated = query.view(rows, kv_heads, queries, 1, dim).expand(-1, -1, -1, groups, -1).flatten(2, 3)
    out, lse = FUSED(repeated, key, value, attn_mask=regions.bias(queries), scale=scale)[:2]
    lse = lse.view(rows, kv_heads, queries, groups)
    if regions.has_empty:  # the kernel says 0
        lse = lse.masked_fill(regions.empty[:, None, None], -torch.inf)
    return Split(out.view(rows, kv_heads, queries, groups, dim), lse, regions.has_empty)


def _split_fused(query: Tensor, key: Tensor, value: Tensor, regions: Regions, scale: float) -> list[Partial]:
    """One span at a time with the kernel of sdpa, which reads keys and values together and returns the normaliser."""
    assert regions.spans is not None
    assert FUSED is not None
    partials: list[Partial | None] = [None] * regions.group_count
    for start, stop, name in regions.spans:
        out, lse = FUSED(query.unsqueeze(2), key[:, :, start:stop], value[:, :, start:stop], scale=scale)[:2]
        found, known = Partial(out.squeeze(2), lse.squeeze(2)), partials[name]
        partials[name] = found if known is None else _joined(known, found)
    return [_empty(query.shape[0], query.shape[1], query.shape[2], query) if p is None else p for p in partials]


def _joined(a: Partial, b: Partial) -> Partial:
    """Attention over the union of two non-empty groups."""
    share = torch.sigmoid(b.lse - a.lse).unsqueeze(-1)
    return Partial(torch.lerp(a.value, b.value, share), torch.logaddexp(a.lse, b.lse))


def _split_by_spans(scores: Tensor, value: Tensor, regions: Regions) -> list[Partial]:
    assert regions.spans is not None
    rows, kv_heads, groups, _ = scores.shape
    partials = []
    for name in range(regions.group_count):
        spans = [(start, stop) for start, stop, group in regions.spans if group == name]
        if not spans:
            partials.append(_empty(rows, kv_heads * groups, value.shape[-1], scores))
            continue
        # each group has its own maximum: its real scores may be far below those of another group, while the
        # counterfactual scores of that group are small
        top = reduce(torch.maximum, [scores[..., a:b].amax(-1, keepdim=True) for a, b in spans])
        weights = [scores[..., a:b].sub_(top).exp_() for a, b in spans]
        pairs = zip(spans, weights, strict=True)
        numerator = reduce(torch.add, [weighted_values(w, value[:, :, a:b]) for (a, b), w in pairs])
        normaliser = reduce(torch.add, [w.sum(-1, keepdim=True) for w in weights])
        partials.append(_partial(numerator, normaliser, top))
    return partials


def _split_by_masks(scores: Tensor, value: Tensor, regions: Regions) -> list[Partial]:
    rows, kv_heads, groups, positions = scores.shape
    masks = regions.masks[:, None, :, None]
    stacked = scores.unsqueeze(2).masked_fill(~masks, -torch.inf)
    top = stacked.amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = stacked.sub_(top).exp_()
    # all groups share one product over the values: a group is a block of query rows with zero weights elsewhere
    numerators = weighted_values(weights.view(rows, kv_heads, -1, positions), value)
    numerators = numerators.view(rows, kv_heads, regions.group_count, groups, -1)
    normalisers = weights.sum(-1, keepdim=True)
    return [_partial(numerators[:, :, m], normalisers[:, :, m], top[:, :, m]) for m in range(regions.group_count)]


def _partial(numerator: Tensor, normaliser: Tensor, top: Tensor) -> Partial:
    value = numerator / normaliser.clamp(min=TINY)  # an empty group gives 0; NaN from the model is kept
    return Partial(value.flatten(1, 2), (normaliser.log() + top).flatten(1))


def _empty(rows: int, heads: int, dim: int, like: Tensor) -> Partial:
    return Partial(like.new_zeros(rows, heads, dim), like.new_full((rows, heads), -torch.inf))


def shares(lse: Float[Tensor, "groups *heads"]) -> Float[Tensor, "groups *heads"]:
    """The share of attention of each group. An empty group (−inf) gets 0 unless all are empty."""
    return torch.softmax(lse.clamp(min=LOWEST), dim=0)


def merge(
    partials: Sequence[Partial], factors: Sequence[Float[Tensor, "rows heads"] | None] | None = None
) -> Float[Tensor, "rows heads dim"]:
    """Attention over the union of the groups. `factors` scale the values of each group (None: 1).

    With factors β and γ this is softmax(qKᵀ/√d)[βV_vis; γV_lang], by linearity, without a scaled copy of V.
    """
    parts = shares(torch.stack([p.lse for p in partials]))
    given = factors or [None] * len(partials)
    scaled = [part if factor is None else part * factor for part, factor in zip(parts, given, strict=True)]
    return reduce(torch.add, [share.unsqueeze(-1) * p.value for share, p in zip(scaled, partials, strict=True)])
