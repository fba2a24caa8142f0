"""Attention split by modality.

A `Partial` is softmax attention over one set of positions alone: the weighted mean of its values and the
logarithm of its normaliser. Partials of disjoint sets merge exactly into attention over their union, and
because the normaliser stays a logarithm, no set can overflow or underflow another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool, Float
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny
LOWEST = torch.finfo(torch.float32).min / 4

FUSED = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""sdpa's own kernel on a CPU; private to torch, so done without where it is missing."""

VISUAL, LANGUAGE, NEUTRAL = 0, 1, 2
"""Sets of positions. Neutral positions (sinks, when asked for) are attended but never masked nor scaled."""


@dataclass(frozen=True)
class Partial:
    """Attention over one set: `value` is its own softmax mean, `lse` the log of its normaliser (−inf: empty)."""

    value: Float[Tensor, "rows heads dim"]
    lse: Float[Tensor, "rows heads"]


@dataclass(frozen=True)
class Regions:
    """Which set every cached position belongs to, row by row; padding belongs to none.

    The rest is the same knowledge on the host, so that no step has to wait for the device: `counts` by row
    and set, and `spans`, a list of (start, stop, set), when all rows agree (slices are cheaper than masks).
    """

    masks: Bool[Tensor, "rows sets positions"]
    counts: tuple[tuple[int, ...], ...]
    spans: tuple[tuple[int, int, int], ...] | None

    @classmethod
    def of(cls, masks: Bool[Tensor, "rows sets positions"]) -> Regions:
        counts = tuple(tuple(row) for row in masks.sum(-1).tolist())
        return cls(masks, counts, _common_spans(masks))

    @property
    def length(self) -> int:
        return self.masks.shape[-1]

    @property
    def sets(self) -> int:
        return self.masks.shape[1]

    def longest(self, name: int) -> int:
        return max(row[name] for row in self.counts)

    def even(self, name: int) -> bool:
        return len({row[name] for row in self.counts}) == 1

    def extended(self, owners: Sequence[int]) -> Regions:
        """One position more, which belongs in each row to the set given (−1: to none)."""
        member = torch.tensor([[m == owner for m in range(self.sets)] for owner in owners])
        masks = torch.cat([self.masks, member.to(self.masks.device).unsqueeze(-1)], dim=-1)
        counts = tuple(
            tuple(n + (m == owner) for m, n in enumerate(row)) for row, owner in zip(self.counts, owners, strict=True)
        )
        spans = self.spans
        if spans is not None:
            spans = _grown(spans, self.length, owners[0]) if len(set(owners)) == 1 else None
        return Regions(masks, counts, spans)

    def select(self, rows: Sequence[int]) -> Regions:
        index = torch.tensor(rows, device=self.masks.device)
        return Regions(self.masks.index_select(0, index), tuple(self.counts[r] for r in rows), self.spans)


def _grown(spans: tuple[tuple[int, int, int], ...], at: int, owner: int) -> tuple[tuple[int, int, int], ...]:
    if owner < 0:
        return spans
    if spans and spans[-1][1] == at and spans[-1][2] == owner:
        return (*spans[:-1], (spans[-1][0], at + 1, owner))
    return (*spans, (at, at + 1, owner))


def _common_spans(masks: Tensor) -> tuple[tuple[int, int, int], ...] | None:
    if not bool((masks == masks[:1]).all()):
        return None
    first = masks[0]
    owners = torch.where(first.any(0), first.to(torch.uint8).argmax(0), -1).tolist()
    spans: tuple[tuple[int, int, int], ...] = ()
    for at, owner in enumerate(owners):
        spans = _grown(spans, at, owner)
    return spans


def group(query: Float[Tensor, "rows heads dim"], kv_heads: int) -> Float[Tensor, "rows kv_heads group dim"]:
    """Query heads arranged under the key/value head that they share."""
    return query.view(query.shape[0], kv_heads, -1, query.shape[-1])


def capped(scores: Float[Tensor, "*heads positions"], softcap: float | None) -> Float[Tensor, "*heads positions"]:
    """cap·tanh(s/cap), as Gemma 2 bounds its scores before masks and softmax. None: as they are."""
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def attention_scores(
    query: Float[Tensor, "rows heads dim"], key: Float[Tensor, "rows kv_heads positions dim"], scale: float
) -> Float[Tensor, "rows kv_heads group positions"]:
    """q·k scaled, not capped, in fp32 whatever the model's type: half-precision scores cost measurable quality."""
    grouped = group(query.float() * scale, key.shape[1])
    if key.dtype == torch.float32 or not key.is_cuda:
        if grouped.shape[2] == 1:  # K qᵀ reads the keys in their own order: a third less time than q Kᵀ on a CPU
            return torch.matmul(key.float(), grouped.transpose(-1, -2)).transpose(-1, -2)
        return torch.matmul(grouped, key.float().transpose(-1, -2))
    # accumulates and returns fp32 without an fp32 copy of the keys
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
    """Σ_j w_j v_j in fp32; half-precision values are read as they are where the device can accumulate in fp32."""
    if value.dtype == torch.float32 or not value.is_cuda:
        return torch.matmul(weights, value.float())
    rows, kv_heads, positions, dim = value.shape
    flat = torch.bmm(
        weights.to(value.dtype).reshape(rows * kv_heads, -1, positions),
        value.reshape(rows * kv_heads, positions, dim),
        out_dtype=torch.float32,
    )
    return flat.view(rows, kv_heads, -1, dim)


def split_attention(
    query: Float[Tensor, "rows heads dim"],
    key: Float[Tensor, "rows kv_heads positions dim"],
    value: Float[Tensor, "rows kv_heads positions dim"],
    regions: Regions,
    scale: float,
    softcap: float | None = None,
) -> list[Partial]:
    """One partial a set, in one pass over keys and values."""
    if softcap is None and regions.spans is not None and FUSED is not None and _fits(query, key, value):
        return _split_fused(query, key, value, regions, scale)
    scores = capped(attention_scores(query, key, scale), softcap)
    if regions.spans is None:
        return _split_by_masks(scores, value, regions)
    return _split_by_spans(scores, value, regions)


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch's fused kernel can take a span: with shared keys the grouped products are faster."""
    return (
        key.device.type == "cpu"
        and query.dtype == key.dtype == value.dtype == torch.float32
        and query.shape[1] == key.shape[1]
        and key.shape[-1] == value.shape[-1]
    )


def _split_fused(query: Tensor, key: Tensor, value: Tensor, regions: Regions, scale: float) -> list[Partial]:
    """A span at a time by the kernel of sdpa, which reads keys and values together and gives the normaliser too."""
    assert regions.spans is not None
    assert FUSED is not None
    partials: list[Partial | None] = [None] * regions.sets
    for start, stop, name in regions.spans:
        out, lse = FUSED(query.unsqueeze(2), key[:, :, start:stop], value[:, :, start:stop], scale=scale)[:2]
        found, known = Partial(out.squeeze(2), lse.squeeze(2)), partials[name]
        partials[name] = found if known is None else _joined(known, found)
    return [_empty(query.shape[0], query.shape[1], query.shape[2], query) if p is None else p for p in partials]


def _joined(a: Partial, b: Partial) -> Partial:
    """Attention over the union of two sets that are not empty."""
    share = torch.sigmoid(b.lse - a.lse).unsqueeze(-1)
    return Partial(torch.lerp(a.value, b.value, share), torch.logaddexp(a.lse, b.lse))


def _split_by_spans(scores: Tensor, value: Tensor, regions: Regions) -> list[Partial]:
    assert regions.spans is not None
    rows, kv_heads, groups, _ = scores.shape
    partials = []
    for name in range(regions.sets):
        spans = [(start, stop) for start, stop, owner in regions.spans if owner == name]
        if not spans:
            partials.append(_empty(rows, kv_heads * groups, value.shape[-1], scores))
            continue
        # a maximum of its own for each set: a set that is far below another in the real world may be
        # alone with weak noise in a counterfactual one
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
    # all sets share one product over the values: a set is a block of query rows with the other weights at zero
    numerators = weighted_values(weights.view(rows, kv_heads, -1, positions), value)
    numerators = numerators.view(rows, kv_heads, regions.sets, groups, -1)
    normalisers = weights.sum(-1, keepdim=True)
    return [_partial(numerators[:, :, m], normalisers[:, :, m], top[:, :, m]) for m in range(regions.sets)]


def _partial(numerator: Tensor, normaliser: Tensor, top: Tensor) -> Partial:
    value = numerator / normaliser.clamp(min=TINY)  # an empty set gives 0, a NaN of the model's stays one
    return Partial(value.flatten(1, 2), (normaliser.log() + top).flatten(1))


def _empty(rows: int, heads: int, dim: int, like: Tensor) -> Partial:
    return Partial(like.new_zeros(rows, heads, dim), like.new_full((rows, heads), -torch.inf))


def shares(lse: Float[Tensor, "sets *heads"]) -> Float[Tensor, "sets *heads"]:
    """How the sets divide the attention. An empty one (−inf) gets nothing; between empty ones it does not matter."""
    return torch.softmax(lse.clamp(min=LOWEST), dim=0)


def merge(
    partials: Sequence[Partial], factors: Sequence[Float[Tensor, "rows heads"] | None] | None = None
) -> Float[Tensor, "rows heads dim"]:
    """Attention over the union of the sets; `factors` scale each set's values (None: 1).

    With factors β and γ this is softmax(qKᵀ/√d)[βV_vis; γV_lang], by linearity, with no scaled copy of V.
    """
    parts = shares(torch.stack([p.lse for p in partials]))
    given = factors or [None] * len(partials)
    scaled = [part if factor is None else part * factor for part, factor in zip(parts, given, strict=True)]
    return reduce(torch.add, [share.unsqueeze(-1) * p.value for share, p in zip(scaled, partials, strict=True)])
