"""Leave tokens out of finished answers: the sequences that generate() returns, and streams.

The model has still read the tokens that are left out. Tensors of single steps (logits, scores, beam_indices) remain
those of all steps; `Edit.steps` says which of them belong to the tokens that were kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class AnswerTokens:
    """The tokens of one answer, while it is generated or afterwards."""

    ids: tuple[int, ...]
    """Without the end-of-sequence token."""
    at: tuple[int, ...]
    """The row of the generation in which each token was chosen, because beams move between rows; and that of the
    end-of-sequence token, if there is one."""
    sample: int
    """The index of its prompt in the batch."""
    finished: bool = True


@dataclass(frozen=True)
class Sentence:
    """A sentence of an answer, as a method judged it."""

    start: int
    """Its first token in the generated answer, before anything was left out."""
    stop: int
    text: str
    risk: float | None = None
    """The highest risk of its object words. None if there is none."""
    word: str | None = None
    """The object word with the highest risk."""
    kept: bool = True
    marked: bool = False
    """Whether the risk exceeds the threshold."""
    tries: int = 0
    """How often it was generated again."""


@dataclass(frozen=True)
class Kept:
    """The decision of a method about the first `until` tokens of an answer."""

    until: int
    """Number of tokens that are decided. All of them if the answer is finished."""
    tokens: tuple[int, ...]
    """Indices of the tokens to keep, in order, all below `until`."""
    sentences: tuple[Sentence, ...] = ()
    again: tuple[int, ...] = ()
    """Tokens that were generated again after a roll-back. They count as changes."""


@dataclass(frozen=True)
class Edit:
    """A finished answer and what was kept of it."""

    ids: tuple[int, ...]
    """All generated tokens, with the end-of-sequence token if there is one."""
    at: tuple[int, ...]
    """The row of the generation in which each of them was chosen."""
    steps: tuple[int, ...]
    """The steps at which the kept tokens were generated: indices of `ids`."""
    sentences: tuple[Sentence, ...] = ()
    again: tuple[int, ...] = ()
    """The steps whose tokens were generated again."""

    @property
    def dropped(self) -> tuple[int, ...]:
        """The steps whose tokens were left out."""
        return tuple(sorted(set(range(len(self.ids))) - set(self.steps)))


Keep = Callable[[AnswerTokens], Kept]


def edits_of(output: Any, prompt_length: int, end_tokens: frozenset[int], rows: int, keep: Keep) -> list[Edit]:
    """One edit per returned sequence. `rows` is the number of prompts."""
    sequences = output.sequences[:, prompt_length:].tolist()
    beams = getattr(output, "beam_indices", None)
    found = []
    for row, new in enumerate(sequences):
        count = next((i for i, token in enumerate(new) if token in end_tokens), len(new))
        ids = tuple(new[: count + 1])
        at = (row,) * len(ids) if beams is None else tuple(beams[row, : len(ids)].tolist())
        kept = keep(AnswerTokens(ids[:count], at, row * rows // len(sequences)))
        found.append(Edit(ids, at, (*kept.tokens, *range(count, len(ids))), kept.sentences, kept.again))
    return found


def shortened(sequences: Tensor, prompt_length: int, edits: Sequence[Edit], pad: int) -> Tensor:
    """The prompts with the kept tokens, padded on the right."""
    width = max(len(edit.steps) for edit in edits)
    rows = [[edit.ids[step] for step in edit.steps] for edit in edits]
    new = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], dtype=sequences.dtype)
    return torch.cat([sequences[:, :prompt_length], new.to(sequences.device).view(len(edits), width)], dim=1)


class HeldStreamer:
    """Passes the tokens of a single answer on to another streamer once they are decided, without those left out.

    A streamer with a list `steps` is told at which step each token was generated.
    """

    def __init__(self, streamer: Any, end_tokens: frozenset[int], keep: Keep) -> None:
        self.streamer, self._end_tokens, self._keep = streamer, end_tokens, keep
        self._ids: list[int] = []
        self._ending: list[int] = []
        self._passed = 0  # kept tokens that were passed on
        self._prompt = True

    def put(self, value: Tensor) -> None:
        if self._prompt:
            self._prompt = False
            self.streamer.put(value)
            return
        for token in value.flatten().tolist():
            (self._ending if self._ending or token in self._end_tokens else self._ids).append(token)
        self._pass_on(finished=False)

    def end(self) -> None:
        self._pass_on(finished=True)
        for index, token in enumerate(self._ending, len(self._ids)):
            self._put(index, token)
        self.streamer.end()

    def _put(self, step: int, token: int) -> None:
        getattr(self.streamer, "steps", []).append(step)
        self.streamer.put(torch.tensor([token]))

    def _pass_on(self, finished: bool) -> None:
        count = len(self._ids)
        if not count:
            return
        kept = self._keep(AnswerTokens(tuple(self._ids), (0,) * count, 0, finished)).tokens
        for index in kept[self._passed :]:
            self._put(index, self._ids[index])
        self._passed = len(kept)
