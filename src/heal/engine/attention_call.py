"""One call of a layer's attention as a frozen value, with the forms of attention that methods need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.counterfactual import Attended
from heal.analysis.split import Regions, capped
from heal.engine.masks import as_bool

if TYPE_CHECKING:
    from heal.engine.generation import Generation, Phase

ALL = slice(None)
BLOCK = 128
"""Number of queries whose weights are computed at once, so that the T × T matrix of a prompt is never stored."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """All queries of one pass and all keys of one layer, after rotary embedding and the cache update.

    Keys and values are not repeated for grouped-query attention. `mask` comes from transformers: boolean or additive,
    or None for causal attention of several queries and full attention of one.
    """

    generation: Generation
    layer: int
    kind: str
    """Kind of the layer: full_attention, sliding_attention …"""
    query: Float[Tensor, "rows heads queries dim"]
    key: Float[Tensor, "rows kv_heads positions dim"]
    value: Float[Tensor, "rows kv_heads positions dim"]
    mask: Tensor | None
    scale: float
    softcap: float | None
    plain: Callable[[], Tensor]
    """The plain attention of this call, [rows, queries, heads, dim]. It is computed once."""

    @property
    def phase(self) -> Phase:
        return self.generation.phase

    @property
    def branch(self) -> str:
        return self.generation.branch

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @property
    def positions(self) -> int:
        return self.key.shape[2]

    @cached_property
    def regions(self) -> Regions:
        """The position groups of the keys that the newest query attends to."""
        return self.generation.regions(self.kind, self.mask, self.positions, self.key.device)

    @cached_property
    def newest(self) -> Attended:
        """The newest query with the cached keys and values."""
        return Attended(self.query[:, :, -1], self.key, self.value, self.regions, self.scale, self.softcap)

    @property
    def groups(self) -> Tensor:
        """The position group of each key, [rows, positions]. Undefined at padding."""
        generation = self.generation
        return generation.groups[:, generation.length - self.positions :].to(self.key.device)

    def blocks(self, queries: slice = ALL, size: int | None = None) -> Iterator[slice]:
        """Split queries into blocks, for methods that need the weights of many queries."""
        first, end, _ = queries.indices(self.queries)
        size = size or BLOCK
        for start in range(first, end, size):
            yield slice(start, min(start + size, end))

    def allowed(self, queries: slice = ALL) -> Bool[Tensor, "some one queries positions"]:
        """The keys that each query may attend to, given causality, padding and windows. `some` is 1 or rows."""
        if self.mask is not None:
            return as_bool(self.mask[:, :1, queries, : self.positions])
        ones = torch.ones(self.queries, self.positions, dtype=torch.bool, device=self.key.device)
        return ones.tril(self.positions - self.queries)[None, None, queries]

    def scores(self, queries: slice = ALL) -> Float[Tensor, "rows heads queries positions"]:
        """Scaled and capped q·k in fp32, −inf where a query may not attend to a key."""
        query = self.query[:, :, queries].float() * self.scale
        rows, heads, count, dim = query.shape
        grouped = query.reshape(rows, self.key.shape[1], -1, dim)
        scores = torch.matmul(grouped, self.key.float().transpose(-1, -2)).view(rows, heads, count, -1)
        return capped(scores, self.softcap).masked_fill(~self._attendable(queries), -torch.inf)

    def weights(self, queries: slice = ALL) -> Float[Tensor, "rows heads queries positions"]:
        """The attention weights of these queries."""
        return self.scores(queries).softmax(-1)

    def combine(
        self, weights: Float[Tensor, "rows heads queries positions"]
    ) -> Float[Tensor, "rows queries heads dim"]:
        """The attention output for given weights."""
        rows, heads, count, positions = weights.shape
        grouped = weights.reshape(rows, self.value.shape[1], -1, positions)
        out = torch.matmul(grouped, self.value.float())
        return out.view(rows, heads, count, -1).transpose(1, 2)

    def attend(
        self,
        bias: Tensor | None = None,
        keep: Tensor | None = None,
        sink: Tensor | None = None,
        rescale: Callable[[Tensor], Tensor] | None = None,
        queries: slice = ALL,
    ) -> Float[Tensor, "rows queries heads dim"]:
        """The attention output of these queries with changed scores, computed in blocks.

        `bias` is added to the scores, `keep` (boolean) drops keys where it is False, and `rescale` maps the scores
        [rows, heads, queries, positions] to new ones; `bias` and `keep` broadcast to that shape. `sink` is the score
        of an additional key whose value is zero; it broadcasts to [rows, heads, queries].
        """
        outputs = []
        for block in self.blocks(queries):
            scores = self.scores(block)
            if rescale is not None:
                scores = rescale(scores).masked_fill(scores == -torch.inf, -torch.inf)
            if bias is not None:
                scores = scores + (bias[..., block, :] if bias.shape[-2] > 1 else bias)
            if keep is not None:
                scores = scores.masked_fill(~(keep[..., block, :] if keep.shape[-2] > 1 else keep), -torch.inf)
            outputs.append(self.combine(self._softmax(scores, sink, block)))
        return torch.cat(outputs, dim=1)

    def with_newest(self, output: Float[Tensor, "rows heads dim"]) -> Float[Tensor, "rows queries heads dim"]:
        """The plain output, with the output of the newest query replaced."""
        whole = self.plain()
        if self.queries == 1:
            return output.unsqueeze(1)
        vars(self)["plain_newest"] = whole[:, -1].clone()
        whole[:, -1] = output.to(whole.dtype)
        return whole

    @cached_property
    def plain_newest(self) -> Float[Tensor, "rows heads dim"]:
        """The plain output of the newest query."""
        return self.plain()[:, -1]

    def know_plain(self, output: Float[Tensor, "rows heads dim"], exact: bool = False) -> None:
        """Hand over the plain output of the newest query, computed beside the method's own.

        With `exact`, the method left every bit of the heads that it did not change.
        """
        vars(self)["known_plain"] = output, exact

    @property
    def newest_replaced(self) -> bool:
        """Whether `with_newest` wrote into the plain output."""
        return "plain_newest" in vars(self)

    def _attendable(self, queries: slice) -> Tensor:
        """Like `allowed`, but padding queries attend to every key, so that their unused output is not NaN."""
        allowed = self.allowed(queries)
        return allowed | ~allowed.any(-1, keepdim=True)

    @staticmethod
    def _softmax(scores: Tensor, sink: Tensor | None, block: slice) -> Tensor:
        if sink is None:
            return scores.softmax(-1)
        extra = (sink[..., block] if sink.shape[-1] > 1 else sink).expand(scores.shape[:-1]).unsqueeze(-1)
        return torch.cat([scores, extra], dim=-1).softmax(-1)[..., :-1]
