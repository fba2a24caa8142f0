"""The interface of a method, the handle of an attached one, and the registry."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
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
    """Proof that a method did something: how often, to how many heads, how strongly."""

    steps: int = 0
    """Steps at which at least one head was changed."""
    heads: int = 0
    """Changed heads, summed over steps."""
    beta: float = 0.0
    """Mean |β − 1| over the changed heads."""
    gamma: float = 0.0
    """Mean |γ − 1| over the changed heads."""
    reason: str | None = None
    """Why nothing was changed, if nothing was."""

    def __bool__(self) -> bool:
        return self.heads > 0

    @classmethod
    def of(cls, counts: Sequence[Tensor], reason: str | None = None) -> Fired:
        """From one (heads, Σ|β−1|, Σ|γ−1|) a step."""
        if not counts:
            return cls(reason=reason)
        table = torch.stack([c.double().cpu() for c in counts])
        heads, beta, gamma = table.sum(0).tolist()
        if heads == 0:
            return cls(reason=reason)
        return cls(int((table[:, 0] > 0).sum()), int(heads), beta / heads, gamma / heads)


class Tally:
    """What was changed in one generation: a (3, rows) tensor a step, in the rows of that step."""

    PENDING = 32

    def __init__(self) -> None:
        self.reason: str | None = None
        self._steps: list[Tensor] = []
        self._pending: list[tuple[Tensor, Tensor]] = []

    def add(self, beta: Tensor, gamma: Tensor) -> None:
        """One step's factors, [rows, layers, heads] each. Counted many steps at a time: a step has better to do."""
        if self._pending and self._pending[0][0].shape != beta.shape:
            self._count()
        self._pending.append((beta, gamma))
        if len(self._pending) == self.PENDING:
            self._count()

    @property
    def steps(self) -> list[Tensor]:
        """(heads changed, Σ|β−1|, Σ|γ−1|) by row, a step each."""
        self._count()
        return self._steps

    def _count(self) -> None:
        if self._pending:
            beta, gamma = ((torch.stack(factors) - 1).abs() for factors in zip(*self._pending, strict=True))
            changed = ((beta > 0) | (gamma > 0)).float()
            self._steps += torch.stack([x.sum(dim=(2, 3)) for x in (changed, beta, gamma)], dim=1).unbind()
            self._pending.clear()

    def row(self, at: Iterable[int]) -> Fired:
        """Of one answer, whose token t was made in row `at[t]`."""
        reason = self.reason or "this row has no visual tokens, or no synergy head off its equilibrium"
        return Fired.of([s[:, r] for s, r in zip(self.steps, at, strict=False)], reason)


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
        per_step = [s.sum(1) for t in tallies for s in t.steps]
        return Fired.of(per_step, reason or "nothing was generated")

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

    def runtime(self, layout: Layout, trace: bool) -> Runtime:
        """The method at work on a model of this layout."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")

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


def parse(text: str) -> Method:
    """`heal`, or with options `heal:alpha=0.5,interval=5,layers=8-23`."""
    name, _, rest = text.partition(":")
    name = name.strip()
    if name not in _registry:
        create(name)
    hints = typing.get_type_hints(_registry[name])
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals or key not in hints:
            raise ConfigError(f"{item!r} is not an option of {name}: write {name}:option=value,… with {_names(name)}")
        options[key] = _convert(value, hints[key], f"{name}:{key}")
    return create(name, **options)


def _names(name: str) -> str:
    return ", ".join(f.name for f in dataclasses.fields(_registry[name]))


def _convert(value: str, hint: Any, where: str) -> Any:
    """Text to the type of a field; a union takes the first member that fits."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        for member in sorted(typing.get_args(hint), key=lambda m: m is not type(None)):
            try:
                return _convert(value, member, where)
            except ConfigError:
                continue
    elif hint is type(None) and value.lower() == "none":
        return None
    elif typing.get_origin(hint) is typing.Literal and value in typing.get_args(hint):
        return value
    elif hint is bool and value.lower() in ("true", "false"):
        return value.lower() == "true"
    elif typing.get_origin(hint) is tuple:
        return _ranges(value, where)
    elif hint is str:
        return value
    elif hint in (int, float):
        try:
            return hint(value)
        except ValueError:
            pass
    raise ConfigError(f"{where} cannot be {value!r}")


def _ranges(value: str, where: str) -> tuple[int, ...]:
    """`8-23` or `0+4+8-11`."""
    out: list[int] = []
    for part in value.split("+"):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"{where} cannot be {value!r}: write numbers and ranges as 0+4+8-11")
        out.extend(range(int(first), int(last or first) + 1))
    return tuple(out)
