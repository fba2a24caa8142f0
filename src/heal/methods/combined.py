"""A method that changes the model combined with a search method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError
from heal.methods.base import Method


@dataclass(frozen=True)
class Combined(Method):
    """Exactly one of the parts changes the model; the others only set search options."""

    parts: tuple[Method, ...]
    """The methods, in the order in which they were given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.inner) != 1:
            names = " and ".join(m.name for m in self.inner) or "none of them"
            raise ConfigError(
                f"{names} would change the model: combine exactly one such method with search methods (beam)"
            )

    @property
    def inner(self) -> tuple[Method, ...]:
        """The methods that change the model."""
        return tuple(m for m in self.parts if not m.searches)

    @property
    def name(self) -> str:  # type: ignore[override]
        return "+".join(m.name for m in self.parts)

    @property
    def seed(self) -> int:
        return int(getattr(self.inner[0], "seed", 0))

    def generate_options(self) -> dict[str, Any]:
        return {key: value for m in self.parts for key, value in m.generate_options().items()}

    def options(self) -> dict[str, Any]:
        return {m.name: m.options() for m in self.parts}

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        return self.inner[0].runtime(layout, trace)
