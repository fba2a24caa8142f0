"""The state of one generation: which position belongs to which modality, and which step it is."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from heal.analysis.split import VISUAL, Regions
from heal.engine.comparison import BeamScores
from heal.engine.tally import Tally

Phase = Literal["prompt", "repeat", "decode"]


class Follower(Protocol):
    """Whatever has rows that follow those of the cache."""

    def select(self, rows: list[int]) -> None: ...


class Generation:
    """One cache being filled. The method keeps its own state in `data`, which follows the rows too."""

    def __init__(self, sets: int, branch: str = "") -> None:
        self.sets = sets
        self.branch = branch
        """The name of the branch whose cache it is; empty for the model's own."""
        self.running: dict[str, Follower] = {}
        """Branches beside this one."""
        self.length = 0
        self.step = 0
        self.phase: Phase = "prompt"
        self.visual = False
        self.mask: Tensor | None = None
        """[rows, positions] of the prompt, 0 where padding is."""
        self.data: Any = None  # a Follower, or None
        self.tally = Tally()
        """What was changed since the prompt."""
        self.beams: BeamScores | None = None
        self.best: Tensor | None = None
        """[rows] the likeliest next token, while a search is compared with it."""
        self._owners: Tensor | None = None  # [rows, length] set of each position, before masks are applied
        self._new: list[int] = []
        self._regions: dict[tuple[str, torch.device], Regions] = {}
        self._stamps: dict[tuple[str, torch.device], int] = {}  # step of the last update

    @property
    def rows(self) -> int:
        return 0 if self._owners is None else self._owners.shape[0]

    def read_prompt(self, owners: Tensor) -> None:
        """Several positions at once: a prompt, or the next turn of a conversation."""
        self._owners = owners if self._owners is None else torch.cat([self._owners, owners], dim=1)
        self.length = self._owners.shape[1]
        self.phase, self.step = "prompt", 0
        self.visual = bool((self._owners == VISUAL).any())
        self._regions.clear()

    def repeat_last(self) -> None:
        """The last position of the prompt comes once more; it is there already."""
        self.phase = "repeat"

    def read_token(self, owners: list[int]) -> None:
        """One generated token in each row."""
        assert self._owners is not None
        column = torch.tensor(owners, device=self._owners.device, dtype=self._owners.dtype)
        self._owners = torch.cat([self._owners, column[:, None]], dim=1)
        self._new = owners
        self.length += 1
        self.phase = "decode"
        self.step += 1

    @property
    def owners(self) -> Tensor:
        """[rows, length] set of each position; of padding it says nothing."""
        assert self._owners is not None
        return self._owners

    def valid(self, positions: int) -> Tensor:
        """[rows, positions] which of the last positions are no padding."""
        if positions == 1 or self.mask is None:
            return torch.ones(self.rows, positions, dtype=torch.bool, device=self.owners.device)
        return self.mask[:, -positions:].bool()

    @property
    def last_owners(self) -> Tensor:
        """[rows, sets] membership of the last position."""
        assert self._owners is not None
        return torch.stack([self._owners[:, -1] == name for name in range(self.sets)], dim=1)

    def regions(self, kind: str, mask: Tensor | None, positions: int, device: torch.device) -> Regions:
        """The sets among the last `positions` keys, as far as the newest query sees them.

        Layers of one kind on one device share them. A window that slides makes them anew; a cache that grows
        extends them.
        """
        place = (kind, device)
        known = self._regions.get(place)
        if known is not None and known.length == positions and self._stamps[place] == self.step:
            return known
        if known is not None and known.length == positions - 1 == self.length - 1:
            known = known.extended(self._new)
        else:
            known = self._from_owners(mask, positions, device)
        self._regions[place], self._stamps[place] = known, self.step
        return known

    def _from_owners(self, mask: Tensor | None, positions: int, device: torch.device) -> Regions:
        assert self._owners is not None
        owners = self._owners[:, self.length - positions :].to(device)
        masks = torch.stack([owners == name for name in range(self.sets)], dim=1)
        if mask is not None:
            seen = mask[:, :1, -1, :positions]
            if seen.dtype != torch.bool:
                seen = seen > torch.finfo(seen.dtype).min / 2
            masks = masks & seen
        return Regions.of(masks)

    def select(self, rows: list[int]) -> None:
        """Rows were reordered, dropped or repeated."""
        if self._owners is None:
            return
        index = torch.tensor(rows, device=self._owners.device)
        self._owners = self._owners.index_select(0, index)
        self._regions = {place: known.select(rows) for place, known in self._regions.items()}
        if self.best is not None:
            self.best = self.best.index_select(0, index.to(self.best.device))
        for follower in (self.data, self.beams, *self.running.values()):
            if follower is not None:
                follower.select(rows)
