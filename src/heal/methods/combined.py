"""Methods that work together: one in the model, and a way of searching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError
from heal.methods.base import Method


@dataclass(frozen=True)
class Combined(Method):
    """What changes the model is one of them; the others only say how to search."""

    parts: tuple[Method, ...]
    """In the order of their names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.inner) != 1:
            names = " and ".join(m.name for m in self.inner) or "none of them"
            raise ConfigError(
                f"{names} would change the model: one method that does and ways of searching (beam) go together"
            )

    @property
    def inner(self) -> tuple[Method, ...]:
        """Those that change the model."""
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
