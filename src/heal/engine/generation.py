"""The state of one generation: the position group of each position, the step, and the state of the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from heal.analysis.split import VISUAL, Regions
from heal.engine.comparison import BeamScores
from heal.engine.growing import Growing, column_of, extended, growing_groups, growing_masks
from heal.engine.masks import as_bool
from heal.engine.state import State
from heal.engine.tally import Tally
from heal.errors import UnsupportedError

if TYPE_CHECKING:
    from heal.engine.source import Source

Phase = Literal["prompt", "repeat", "decode"]
S = TypeVar("S", bound=State)


@runtime_checkable
class Follower(Protocol):
    """An object whose rows and positions follow those of the cache."""

    def select(self, rows: list[int]) -> None: ...

    def crop(self, tokens: int) -> None: ...


class Passes(Follower, Protocol):
    """The branches of a generation, as methods see them."""

    def read(self, generation: Generation[Any], name: str) -> Tensor: ...

    def restart(self, generation: Generation[Any], name: str, arguments: Mapping[str, Any]) -> None: ...


class Generation(Generic[S]):
    """One KV cache with all state that belongs to it. The state follows its rows and its crops."""

    state: S
    """The method's state, from `Runtime.begin`."""

    def __init__(self, group_count: int, branch: str = "", source: Source | None = None) -> None:
        self.group_count = group_count
        self.branch = branch
        """The name of the branch that this cache belongs to. Empty for the model's own."""
        self.passes: Passes | None = None
        """The branches of this generation. None if there are none."""
        self.length = 0
        self.step = 0
        self.phase: Phase = "prompt"
        self.visual = False
        self.edited = False
        """Whether tokens that this cache holds were left out of the answer."""
        self.mask: Tensor | None = None
        """[rows, positions] True at the tokens of the prompt, False at padding."""
        self.beams: BeamScores | None = None
        self.best: Tensor | None = None
        """The most likely next token of each row, while a search is compared with it."""
        self._source = source
        self._samples: list[int] | None = None
        self._groups: Tensor | None = None  # [rows, length] group of each position, before masks are applied
        self._growing: Growing | None = None  # of the groups, while single tokens are read
        self._last: Tensor | None = None
        self._new: list[int] = []
        self._answer: list[Tensor] = []
        self._regions: dict[tuple[str, torch.device], Regions] = {}
        self._masks: dict[tuple[str, torch.device], Growing] = {}  # of the regions
        self._stamps: dict[tuple[str, torch.device], int] = {}  # step of the last update

    @property
    def rows(self) -> int:
        return 0 if self._groups is None else self._groups.shape[0]

    @property
    def tally(self) -> Tally:
        return self.state.tally

    @property
    def source(self) -> Source:
        """The original images and texts of the prompt."""
        if self._source is None:
            raise UnsupportedError(
                "the method needs the original images: use VLM.generate, or give attach(source=Source(…))"
            )
        return self._source

    @property
    def samples(self) -> list[int]:
        """For each row, the index of its prompt in the batch: beams and return sequences are copies of one prompt."""
        if self._samples is None:
            count = self.rows if self._source is None else len(self._source.texts)
            self._samples = [row * count // self.rows for row in range(self.rows)]
        return self._samples

    def restart(self, branch: str, arguments: Mapping[str, Any]) -> None:
        """Restart a branch with another prompt, also in the middle of an answer.

        `arguments` are the model's arguments for all rows, as made by `source.inputs(images, samples)`. Images may
        have other sizes, so the prompt may have more or fewer visual tokens. The branch then reads the current
        answer.
        """
        self._branches().restart(self, branch, arguments)

    def branch_logits(self, branch: str) -> Tensor:
        """The next-token logits [rows, vocabulary] of a branch in fp32, after the current answer."""
        return self._branches().read(self, branch)

    def _branches(self) -> Passes:
        if self.passes is None:
            raise UnsupportedError("the method has no branches: list them in Runtime.branches")
        return self.passes

    @property
    def answer(self) -> Tensor:
        """The generated tokens that were read, [rows, steps]."""
        if not self._answer:
            return torch.zeros(self.rows, 0, dtype=torch.long, device=self.groups.device)
        self._answer = [torch.cat(self._answer, dim=1)]
        return self._answer[0]

    def read_prompt(self, groups: Tensor) -> None:
        """Read several positions at once: a prompt, or the next turn of a conversation."""
        groups = groups if self._groups is None else torch.cat([self._groups, groups], dim=1)
        self._place(groups)
        self.length = groups.shape[1]
        self.phase, self.step = "prompt", 0
        self.visual = bool((groups == VISUAL).any())
        self._answer.clear()
        self._forget_regions()

    def read_answer(self, groups: Tensor, tokens: int) -> None:
        """Read several generated tokens at once, after the prompt of a branch that starts late."""
        self._place(torch.cat([self.groups, groups.to(self.groups)], dim=1))
        self.length += tokens
        self.step += tokens
        self._forget_regions()

    def _place(self, groups: Tensor) -> None:
        """Use other groups than those that grow token by token."""
        self._groups, self._growing, self._last = groups, None, None

    def _forget_regions(self) -> None:
        self._regions.clear()
        self._masks.clear()

    def repeat_last(self) -> None:
        """The last prompt position runs again. It was counted before."""
        self.phase = "repeat"

    def read_token(self, groups: list[int], ids: Tensor | None = None) -> None:
        """Read one generated token for each row, with its ids [rows, 1]."""
        if self._growing is None:
            self._growing = growing_groups(self.groups)
        self._groups, self._last = self._growing.add(column_of(groups, self.groups)), None
        self._new = groups
        if ids is not None:
            self._answer.append(ids)
        self.length += 1
        self.phase = "decode"
        self.step += 1

    @property
    def groups(self) -> Tensor:
        """The group of each position, [rows, length]. Undefined at padding."""
        assert self._groups is not None
        return self._groups

    def valid(self, positions: int) -> Tensor:
        """[rows, positions] True where the last positions are tokens, False at padding."""
        if positions == 1 or self.mask is None:
            return torch.ones(self.rows, positions, dtype=torch.bool, device=self.groups.device)
        return self.mask[:, -positions:].bool()

    @property
    def last_groups(self) -> Tensor:
        """[rows, groups] membership of the last position."""
        if self._last is None:
            names = torch.arange(self.group_count, device=self.groups.device)
            self._last = self.groups[:, -1:] == names
        return self._last

    def regions(self, kind: str, mask: Tensor | None, positions: int, device: torch.device) -> Regions:
        """The position groups of the last `positions` keys that the newest query attends to.

        Layers of one kind on one device share them. A sliding window recomputes them; a growing cache extends them.
        """
        place = (kind, device)
        known = self._regions.get(place)
        if known is not None and known.length == positions and self._stamps[place] == self.step:
            return known
        if known is not None and known.length == positions - 1 == self.length - 1:
            if place not in self._masks:
                self._masks[place] = growing_masks(known)
            known = extended(known, self._masks[place], self._new)
        else:
            known = self._from_groups(mask, positions, device)
            self._masks.pop(place, None)
        self._regions[place], self._stamps[place] = known, self.step
        return known

    def _from_groups(self, mask: Tensor | None, positions: int, device: torch.device) -> Regions:
        assert self._groups is not None
        groups = self._groups[:, self.length - positions :].to(device)
        masks = torch.stack([groups == name for name in range(self.group_count)], dim=1)
        if mask is not None:
            masks = masks & as_bool(mask[:, :1, -1, :positions])
        return Regions.of(masks)

    def select(self, rows: list[int]) -> None:
        """Rows were reordered, dropped or repeated."""
        if self._groups is None:
            return
        self._samples = [self.samples[row] for row in rows]
        index = torch.tensor(rows, device=self._groups.device)
        self._place(self._groups.index_select(0, index))
        self._masks.clear()
        self._regions = {place: known.select(rows) for place, known in self._regions.items()}
        if self._answer:
            answer = self.answer
            self._answer = [answer.index_select(0, index.to(answer.device))]
        if self.best is not None:
            self.best = self.best.index_select(0, index.to(self.best.device))
        for follower in self._followers():
            follower.select(rows)

    def crop(self, tokens: int) -> None:
        """The last `tokens` generated tokens were taken back."""
        if tokens == 0 or self._groups is None:
            return
        if tokens > self.step:
            raise UnsupportedError(
                f"the cache was cropped by {tokens} positions, but only {self.step} tokens were generated: a prompt "
                "cannot be cropped. Start with a new cache"
            )
        answer = self.answer
        self._answer = [answer[:, : self.step - tokens]] if self.step > tokens and self._answer else []
        self._place(self._groups[:, :-tokens])
        self.length -= tokens
        self.step -= tokens
        self._forget_regions()
        for follower in self._followers():
            follower.crop(tokens)
        self.best = self.tally.best[-1] if self.best is not None and self.tally.best else None

    def _followers(self) -> list[Follower]:
        state = self.state if hasattr(self, "state") else None
        return [follower for follower in (state, self.beams, self.passes) if follower is not None]
