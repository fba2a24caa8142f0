"""Compare the values of the plain model with those that a method returned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heal.analysis.split import Partial, merge
from heal.errors import UnsupportedError

MERGED, RECOMPUTED = 4.0, 32.0
"""Rounding differences that do not count as changes: for outputs computed from the same parts, and for the same
attention computed in another way."""
SHIFT = 1e-6
"""Smallest shift of probability that counts as a change. Softmax of fp32 scores is exact to 1e-7."""
BEHIND = -1e9
"""The score of a beam that does not exist yet, as in transformers."""


def differ(
    before: Float[Tensor, "rows heads dim"], after: Float[Tensor, "rows heads dim"], tolerance: float
) -> Bool[Tensor, "rows heads"]:
    """Which heads differ by more than this share of the largest entry of the row.

    The row's largest entry is used instead of the head's, because the values of a head may cancel, and its rounding
    error is that of the values.
    """
    before, after = before.float(), after.float()
    return (after - before).abs().amax(-1) > tolerance * before.abs().amax((-1, -2)).unsqueeze(-1)


def moved(new: Float[Tensor, "rows vocabulary"], old: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, " rows"]:
    """Total variation distance between two distributions."""
    return (new.softmax(-1) - old.softmax(-1)).abs().sum(-1) / 2


class Changes:
    """The changes of one pass, by row. Head outputs are stored; `totals` compares those of many passes at once."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.shape = (rows, device)
        self.split: list[tuple[Sequence[Partial], Tensor]] = []
        self.counts: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for partials, after in self.split for t in (after, *(p.value for p in partials)))

    def merged(self, partials: Sequence[Partial], after: Float[Tensor, "rows heads dim"]) -> None:
        """Attention that the method computed from these partials of the plain attention."""
        self.split.append((partials, after))

    def heads(self, before: Tensor, after: Tensor, exact: bool = False) -> None:
        """Head outputs [rows, heads, dim]. With `exact`, one was computed from the other, so that any difference
        counts.
        """
        tolerance = 0.0 if exact else RECOMPUTED * torch.finfo(before.dtype).eps
        self.counts.append(differ(before, after, tolerance).sum(1))

    def block(self, before: Tensor, after: Tensor) -> None:
        """The output [rows, hidden] of a block at the newest position. It counts as one value."""
        self.counts.append((before != after).any(-1).long())

    def rows(self, changed: Bool[Tensor, " rows"]) -> None:
        self.counts.append(changed.long())


def totals(passes: Sequence[Changes]) -> Int[Tensor, "passes rows"]:
    """The number of changed values per pass and row. All passes have the same rows."""
    rows, device = passes[0].shape
    found = torch.zeros(len(passes), rows, dtype=torch.long, device=device)
    groups: dict[tuple[object, ...], list[tuple[int, Sequence[Partial], Tensor]]] = {}
    for index, changes in enumerate(passes):
        for count in changes.counts:
            found[index] += count.to(device)
        for partials, after in changes.split:
            kind = (after.shape, after.device, after.dtype, len(partials))
            groups.setdefault(kind, []).append((index, partials, after))
    for group in groups.values():
        changed = _changed([(partials, after) for _, partials, after in group]).sum(2).to(device)
        found.index_add_(0, torch.tensor([index for index, _, _ in group], device=device), changed)
    return found


def _changed(layers: Sequence[tuple[Sequence[Partial], Tensor]]) -> Bool[Tensor, "layers rows heads"]:
    sets = range(len(layers[0][0]))
    stacked = [
        Partial(torch.cat([p[s].value for p, _ in layers]), torch.cat([p[s].lse for p, _ in layers])) for s in sets
    ]
    before, after = merge(stacked), torch.cat([after for _, after in layers])
    return differ(before, after, MERGED * torch.finfo(torch.float32).eps).unflatten(0, (len(layers), -1))


class BeamScores:
    """The running scores of the beams, computed in parallel to transformers, to find which hypotheses continue.

    Exact unless logits processors change scores, because they run after the model's output.
    """

    def __init__(self, beams: int, rows: int, device: torch.device) -> None:
        self.beams = beams
        self.scores = torch.full((rows,), BEHIND, device=device)
        self.scores[::beams] = 0.0
        self._last: Tensor | None = None

    def select(self, rows: list[int]) -> None:
        index = torch.tensor(rows, device=self.scores.device)
        self.scores = self.scores.index_select(0, index)
        if self._last is not None:
            self._last = self._last.index_select(0, index)

    def crop(self, tokens: int) -> None:
        """Beam search never removes tokens."""
        raise UnsupportedError("a cache cannot be cropped in the middle of transformers' beam search")

    def read(self, ids: Int[Tensor, "rows 1"]) -> None:
        """Read the tokens that continue the beams."""
        if self._last is not None and len(ids) == len(self.scores):
            self.scores = self.scores + self._last.gather(1, ids.to(self._last.device)).squeeze(1)

    def reranked(
        self, old: Float[Tensor, "rows vocabulary"], new: Float[Tensor, "rows vocabulary"]
    ) -> Bool[Tensor, " rows"]:
        """Rows of samples in which the candidates for the next step, or their order, changed."""
        self._last = new.log_softmax(-1)
        if len(new) != len(self.scores):  # transformers added or dropped rows
            return moved(new, old) > SHIFT
        changed = (self._candidates(old.log_softmax(-1)) != self._candidates(self._last)).any(-1)
        return changed.repeat_interleave(self.beams) & (moved(new, old) > SHIFT)

    def _candidates(self, logprobs: Tensor) -> Tensor:
        flat = (self.scores[:, None] + logprobs).view(len(self.scores) // self.beams, -1)
        return flat.topk(min(2 * self.beams, flat.shape[1])).indices  # as many as transformers considers
