"""Counts of changed values: the engine compares values before and after the method."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heal.engine.comparison import Changes, totals


@dataclass(frozen=True)
class Fired:
    """The number of changed steps and values, and the size of the changes."""

    steps: int = 0
    """Steps at which at least one value was changed."""
    changes: int = 0
    """Values that differ from those of the plain model, summed over steps: head outputs, feed-forward outputs,
    next-token distributions, tokens for which a search did not choose the most likely one, or tokens that were left
    out of the answer or generated again. Compared by the engine.
    """
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Mean change of each quantity of the method over the changed values: |β − 1|, |γ − 1| …"""
    reason: str | None = None
    """The reason, if nothing was changed."""

    def __bool__(self) -> bool:
        return self.changes > 0

    @classmethod
    def of(cls, names: Sequence[str], counts: Sequence[Tensor], reason: str | None = None) -> Fired:
        """From one (changes, number of quantities moved, Σ|size| of each name) per step."""
        if not counts:
            return cls(reason=reason)
        table = torch.stack([c.double().cpu() for c in counts])
        return _fired(names, int((table[:, 0] > 0).sum()), table.sum(0), reason)


class Tally:
    """The changes of one generation: a (2 + sizes, rows) tensor per step, in the rows of that step."""

    PENDING = 32
    """Number of steps that are summed at once, to keep this work out of the decoding step."""
    HELD = 8 * 2**20
    """Maximum size in bytes of the outputs that wait to be compared."""

    def __init__(self, **neutral: float) -> None:
        """`neutral`: the quantities of the method, each with the value that has no effect."""
        self.neutral = neutral
        self.reason: str | None = None
        self.best: list[Tensor] = []
        """For a search: the most likely token of every row at each step."""
        self._steps: list[Tensor] = []
        self._values: tuple[Tensor, ...] | None = None
        self._pending: list[tuple[Changes, tuple[Tensor, ...]]] = []
        self._held = 0
        self._lock = threading.RLock()  # a reader may look while another thread generates

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.neutral)

    def add(self, *values: Tensor) -> None:
        """The quantities of the method in this pass, each [rows, …]."""
        self._values = values

    def count(self, changes: Changes) -> None:
        """Record the changes of a finished pass. Called by the engine only."""
        values, self._values = self._values, None
        rows, device = changes.shape
        if values is None:
            values = tuple(torch.full((rows, 1), n, device=device) for n in self.neutral.values())
        with self._lock:
            if self._pending and _shapes(self._pending[0]) != _shapes((changes, values)):
                self._sum_up()
            self._pending.append((changes, values))
            self._held += changes.nbytes
            if len(self._pending) == self.PENDING or self._held > self.HELD:
                self._sum_up()

    def crop(self, tokens: int) -> None:
        """Remove the passes that read the last `tokens` tokens. Called by the engine only."""
        with self._lock:
            self._sum_up()
            del self._steps[-tokens:]
            del self.best[-tokens:]
            self._values = None

    def edited(self, step: int, row: int) -> None:
        """Count a token that was removed from the answer or generated again. Called by the engine only."""
        with self._lock:
            self._sum_up()
            self._steps[step] = self._steps[step].clone()
            self._steps[step][0, row] += 1

    @property
    def steps(self) -> list[Tensor]:
        """(changes, things moved, Σ|size| …) by row, for each step."""
        with self._lock:
            self._sum_up()
            return list(self._steps)

    def _sum_up(self) -> None:
        if not self._pending:
            return
        changes = totals([changes for changes, _ in self._pending]).float()
        device = changes.device
        by_name = zip(*(values for _, values in self._pending), strict=True)
        sizes = [
            (torch.stack(values).to(device, torch.float32) - neutral).abs().flatten(2)
            for values, neutral in zip(by_name, self.neutral.values(), strict=True)
        ]
        moved = (
            torch.stack([size > 0 for size in sizes]).any(0).float().sum(2) if sizes else torch.zeros_like(changes)
        )
        self._steps += torch.stack([changes, moved, *(size.sum(2) for size in sizes)], dim=1).unbind()
        self._pending.clear()
        self._held = 0

    def row(self, at: Sequence[int], ids: Sequence[int] = ()) -> Fired:
        """The changes of one answer. Its token t is `ids[t]`, generated in row `at[t]`."""
        own_steps = self.steps
        steps = [s[:, r] for s, r in zip(own_steps, at, strict=False)]
        if not self.best:
            reason = self.reason or "this row has no visual tokens, or nothing in it called for a change"
            return Fired.of(self.names, steps, reason)
        reason = self.reason or "the search chose the likeliest token each time"
        chosen = [float(token != int(best[r])) for best, r, token in zip(self.best, at, ids, strict=False)]
        sizes = own_steps[0][1:, at[0]] if steps else torch.zeros(1 + len(self.neutral))
        return Fired.of(self.names, [torch.cat([torch.tensor([c]), sizes.cpu()]) for c in chosen], reason)


def _shapes(entry: tuple[Changes, tuple[Tensor, ...]]) -> list[object]:
    return [entry[0].shape, *(value.shape for value in entry[1])]


class Tallies:
    """The tallies of all generations of an attachment. Older ones are reduced to sums, so memory stays bounded."""

    KEPT = 64

    def __init__(self) -> None:
        self.latest: list[Tally] = []
        self._names: tuple[str, ...] = ()
        self._steps, self._sums = 0, torch.zeros(0, dtype=torch.double)
        self._lock = threading.Lock()

    def append(self, tally: Tally) -> None:
        with self._lock:
            self.latest.append(tally)
            if len(self.latest) > self.KEPT:
                steps, sums = _summed(self.latest[:1])
                self._names = self.latest.pop(0).names
                self._steps, self._sums = self._steps + steps, _added(self._sums, sums)

    def fired(self) -> Fired:
        """The sum over all generations."""
        with self._lock:
            reason = next((t.reason for t in reversed(self.latest) if t.reason), None)
            names = next((t.names for t in self.latest if t.names), self._names)
            steps, sums = _summed(self.latest)
            return _fired(names, self._steps + steps, _added(self._sums, sums), reason or "nothing was generated")


def _summed(tallies: Sequence[Tally]) -> tuple[int, Tensor]:
    """The number of steps with changes, and the sums of all columns."""
    table = [step.sum(1).double().cpu() for tally in tallies for step in tally.steps]
    if not table:
        return 0, torch.zeros(0, dtype=torch.double)
    stacked = torch.stack(table)
    return int((stacked[:, 0] > 0).sum()), stacked.sum(0)


def _added(one: Tensor, other: Tensor) -> Tensor:
    """Add two results. An empty result adds nothing."""
    return one + other if len(one) == len(other) else one if len(one) else other


def _fired(names: Sequence[str], steps: int, sums: Tensor, reason: str | None) -> Fired:
    if not len(sums) or sums[0] == 0:
        return Fired(reason=reason)
    changes, moved, *sizes = sums.tolist()
    return Fired(steps, int(changes), {n: s / moved for n, s in zip(names, sizes, strict=True)} if moved else {})
