"""The interface of a method, the handle of an attached one, and the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from heal.engine.attachment import Attachment
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError


@dataclass(frozen=True)
class Fired:
    """Proof that a method did something: how often, to how many things, how strongly."""

    steps: int = 0
    """Steps at which at least something was changed."""
    changes: int = 0
    """What was changed, summed over steps: heads, layers or distributions, as the method has it."""
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How far each value was moved from the one that changes nothing, mean over the changes: |β − 1|, |γ − 1| …"""
    reason: str | None = None
    """Why nothing was changed, if nothing was."""

    def __bool__(self) -> bool:
        return self.changes > 0

    @classmethod
    def of(cls, names: Sequence[str], counts: Sequence[Tensor], reason: str | None = None) -> Fired:
        """From one (changes, Σ|size| of each name) a step."""
        if not counts:
            return cls(reason=reason)
        table = torch.stack([c.double().cpu() for c in counts])
        changes, *sums = table.sum(0).tolist()
        if changes == 0:
            return cls(reason=reason)
        sizes = {name: total / changes for name, total in zip(names, sums, strict=True)}
        return cls(int((table[:, 0] > 0).sum()), int(changes), sizes)


class Tally:
    """What was changed in one generation: a (1 + sizes, rows) tensor a step, in the rows of that step."""

    PENDING = 32

    def __init__(self, **neutral: float) -> None:
        """What is counted, and the value of each that changes nothing."""
        self.neutral = neutral
        self.reason: str | None = None
        self._steps: list[Tensor] = []
        self._pending: list[tuple[Tensor, ...]] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.neutral)

    def add(self, *values: Tensor) -> None:
        """One step's values, [rows, …] each. Counted many steps at a time: a step has better to do."""
        if self._pending and self._pending[0][0].shape != values[0].shape:
            self._count()
        self._pending.append(values)
        if len(self._pending) == self.PENDING:
            self._count()

    @property
    def steps(self) -> list[Tensor]:
        """(changes, Σ|size| …) by row, a step each."""
        self._count()
        return self._steps

    def _count(self) -> None:
        if not self._pending:
            return
        by_name = zip(zip(*self._pending, strict=True), self.neutral.values(), strict=True)
        sizes = [(torch.stack(values).float() - neutral).abs().flatten(2) for values, neutral in by_name]
        changed = torch.stack([size > 0 for size in sizes]).any(0).float()
        self._steps += torch.stack([x.sum(2) for x in (changed, *sizes)], dim=1).unbind()
        self._pending.clear()

    def row(self, at: Iterable[int]) -> Fired:
        """Of one answer, whose token t was made in row `at[t]`."""
        reason = self.reason or "this row has no visual tokens, or nothing in it called for a change"
        return Fired.of(self.names, [s[:, r] for s, r in zip(self.steps, at, strict=False)], reason)


@dataclass(frozen=True)
class Handle:
    """An attached method, as `attach` yields it."""

    attachment: Attachment

    @property
    def runtime(self) -> Runtime:
        return self.attachment.runtime

    @property
    def fired(self) -> Fired:
        """Over everything generated since the method was attached."""
        tallies = self.runtime.tallies
        reason = next((t.reason for t in reversed(tallies) if t.reason), None)
        names = next((t.names for t in tallies if t.names), ())
        per_step = [s.sum(1) for t in tallies for s in t.steps]
        return Fired.of(names, per_step, reason or "nothing was generated")

    def row(self, at: Iterable[int]) -> Fired:
        """Of one answer of the latest generation, whose token t was made in row `at[t]`."""
        tallies = self.runtime.tallies
        return tallies[-1].row(at) if tallies else Fired(reason="nothing was generated")


@dataclass(frozen=True)
class Method:
    """A way to reduce hallucination: a frozen configuration that can be attached to any supported model."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    searches: ClassVar[bool] = False
    """Whether it only sets options of generate(), so that it can go with a method that changes the model."""

    def runtime(self, layout: Layout, trace: bool) -> Runtime:
        """The method at work on a model of this layout."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")

    def generate_options(self) -> dict[str, Any]:
        """Options of generate() that belong to the method."""
        return {}

    @contextmanager
    def attach(self, model: Any, *, trace: bool = False, special_ids: Iterable[int] = ()) -> Iterator[Handle]:
        """Inside this context every `model.generate(...)` uses the method; afterwards the model is as before."""
        layout = Layout.of(model, frozenset(special_ids))
        with Attachment(layout, self.runtime(layout, trace)) as attachment:
            yield Handle(attachment)

    def options(self) -> dict[str, Any]:
        """The configuration as JSON can hold it."""
        return {
            f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in dataclasses.fields(self)
        }


_registry: dict[str, type[Method]] = {}


def register(cls: type[Method]) -> type[Method]:
    _registry[cls.name] = cls
    return cls


def available() -> dict[str, type[Method]]:
    return dict(sorted(_registry.items()))


def create(name: str, **options: Any) -> Method:
    """A method by its name, with options by theirs."""
    if name not in _registry:
        raise ConfigError(f"unknown method {name!r}: choose one of {', '.join(available())}")
    known = {f.name for f in dataclasses.fields(_registry[name])}
    if unknown := sorted(set(options) - known):
        raise ConfigError(f"{name} has no option {', '.join(unknown)}: it has {', '.join(sorted(known))}")
    return _registry[name](**options)
