"""A method that changes the model combined with a search method, a guard, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError
from heal.methods.base import Method


@dataclass(frozen=True)
class Combined(Method):
    """One part changes the model, one may wrap it (guard), and the others only set search options."""

    parts: tuple[Method, ...]
    """The methods, in the order in which they were given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        changing = [m for m in self.parts if not m.searches and not m.wraps]
        names = " and ".join(m.name for m in changing) or "none of them"
        if len(changing) > 1 or len(self.outer) > 1 or not self.inner:
            raise ConfigError(
                f"{names} would change the model: combine exactly one such method with search methods (beam)"
            )
        for outer in self.outer:
            if changing and changing[0].name not in outer.wraps:
                raise ConfigError(
                    f"{outer.name} cannot be combined with {names}: combine it with {', '.join(outer.wraps)}, with "
                    "beam, or with both"
                )
            if outer.one_sample and len(self.parts) > len(self.inner):
                raise ConfigError(
                    f"{outer.name} rolls one answer back, so it cannot be combined with a search: leave beam out, or "
                    "use action=drop"
                )

    @property
    def outer(self) -> tuple[Method, ...]:
        """The method that wraps another one."""
        return tuple(m for m in self.parts if m.wraps)

    @property
    def inner(self) -> tuple[Method, ...]:
        """The methods that do not only set search options: one that changes the model, one that wraps it, or both."""
        return tuple(m for m in self.parts if not m.searches)

    @property
    def name(self) -> str:  # type: ignore[override]
        return "+".join(m.name for m in self.parts)

    @property
    def one_sample(self) -> bool:  # type: ignore[override]
        return any(m.one_sample for m in self.inner)

    @property
    def seed(self) -> int:
        return int(getattr(self.inner[0], "seed", 0))

    @property
    def passes_per_token(self) -> float:
        return math.prod(m.passes_per_token for m in self.parts)

    @property
    def rows_per_prompt(self) -> int:
        return math.prod(m.rows_per_prompt for m in self.parts)

    def generate_options(self) -> dict[str, Any]:
        return {key: value for m in self.parts for key, value in m.generate_options().items()}

    def options(self) -> dict[str, Any]:
        return {m.name: m.options() for m in self.parts}

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        changing = next((m for m in self.inner if not m.wraps), None)
        if self.outer:
            return self.outer[0].around(changing, layout, trace)
        assert changing is not None
        return changing.runtime(layout, trace)
