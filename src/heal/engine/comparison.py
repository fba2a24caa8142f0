"""Compare the values of the plain model with those that a method returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Outputs:
    """Values of the plain model at one layer, or the partials that they merge from, and those of the method."""

    before: Tensor | Sequence[Partial]
    after: Tensor
    tolerance: float | None
    """Of `differ`; None for rows [rows, width] that count once."""

    @property
    def tensors(self) -> list[Tensor]:
        own = [self.before] if isinstance(self.before, Tensor) else [p.value for p in self.before]
        return [self.after, *own]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    @property
    def holds_more(self) -> bool:
        """Whether to keep them would keep much larger tensors: the newest position of a whole prompt."""
        return any(t.untyped_storage().nbytes() > 2 * t.nbytes for t in self.tensors)

    @property
    def kind(self) -> tuple[object, ...]:
        """Outputs of the same kind can be compared together."""
        parts = 0 if isinstance(self.before, Tensor) else len(self.before)
        dtypes = tuple(t.dtype for t in self.tensors)
        return self.after.shape, self.after.device, dtypes, parts, self.tolerance


class Changes:
    """The changes of one pass, by row. Outputs are stored; `totals` compares those of many passes at once.

    So a method must not write into a tensor after the engine has seen it.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.shape = (rows, device)
        self.outputs: list[Outputs] = []
        self.counts: list[Int[Tensor, " rows"]] = []

    @property
    def nbytes(self) -> int:
        return sum(outputs.nbytes for outputs in self.outputs)

    def merged(self, partials: Sequence[Partial], after: Float[Tensor, "rows heads dim"]) -> None:
        """Attention that the method computed from these partials of the plain attention."""
        self.outputs.append(Outputs(partials, after, MERGED * torch.finfo(torch.float32).eps))

    def heads(self, before: Tensor, after: Tensor, exact: bool = False) -> None:
        """Head outputs [rows, heads, dim]. With `exact`, one was computed from the other: any difference counts."""
        self._keep(Outputs(before, after, 0.0 if exact else RECOMPUTED * torch.finfo(before.dtype).eps))

    def block(self, before: Tensor, after: Tensor) -> None:
        """The output [rows, hidden] of a block at the newest position. It counts as one value."""
        self._keep(Outputs(before, after, None))

    def rows(self, changed: Bool[Tensor, " rows"]) -> None:
        self.counts.append(changed.long())

    def _keep(self, outputs: Outputs) -> None:
        if outputs.holds_more:
            self.counts.append(_changed([outputs])[0])
        else:
            self.outputs.append(outputs)


def totals(passes: Sequence[Changes]) -> Int[Tensor, "passes rows"]:
    """The number of changed values per pass and row. All passes have the same rows."""
    rows, device = passes[0].shape
    found = torch.zeros(len(passes), rows, dtype=torch.long, device=device)
    groups: dict[tuple[object, ...], list[tuple[int, Outputs]]] = {}
    for index, changes in enumerate(passes):
        for outputs in changes.outputs:
            groups.setdefault(outputs.kind, []).append((index, outputs))
    counted = [(index, count.to(device)) for index, changes in enumerate(passes) for count in changes.counts]
    if counted:
        found += _by_pass([index for index, _ in counted], torch.stack([count for _, count in counted]), len(passes))
    for group in groups.values():
        changed = _changed([outputs for _, outputs in group]).to(device)
        found += _by_pass([index for index, _ in group], changed, len(passes))
    return found


def _by_pass(at: Sequence[int], counts: Int[Tensor, "layers rows"], passes: int) -> Int[Tensor, "passes rows"]:
    """Sums of counts whose passes `at` are in order. The host uploads no index, which would wait for the device."""
    sizes = [at.count(index) for index in range(passes)]
    if len(set(sizes)) == 1:
        return counts.unflatten(0, (passes, -1)).sum(1)
    return torch.stack([part.sum(0) for part in counts.split(sizes)])


def _changed(layers: Sequence[Outputs]) -> Int[Tensor, "layers rows"]:
    """The changed values of outputs of the same kind."""
    tolerance = layers[0].tolerance
    before, after = _before(layers), torch.cat([outputs.after for outputs in layers])
    if tolerance is None:
        return (before != after).any(-1).unflatten(0, (len(layers), -1)).long()
    return differ(before, after, tolerance).sum(1).unflatten(0, (len(layers), -1))


def _before(layers: Sequence[Outputs]) -> Tensor:
    """The plain outputs of all layers, one after the other."""
    tensors = [outputs.before for outputs in layers if isinstance(outputs.before, Tensor)]
    if tensors:
        return torch.cat(tensors)
    columns = zip(*(outputs.before for outputs in layers if not isinstance(outputs.before, Tensor)), strict=True)
    return merge([_joined(column) for column in columns])


def _joined(column: Sequence[Partial]) -> Partial:
    return Partial(torch.cat([p.value for p in column]), torch.cat([p.lse for p in column]))


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
