"""Shared by the methods that contrast logits or amplify heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from jaxtyping import Bool
from torch import Tensor

from heal.analysis.split import VISUAL
from heal.engine.generation import Generation
from heal.engine.runtime import Runtime
from heal.engine.state import State


def seeing(generation: Generation[Any]) -> Bool[Tensor, " rows"]:
    """Rows with visual tokens. In a mixed batch, the other rows are not changed."""
    return (generation.groups == VISUAL).any(1)


class CountingRuntime(Runtime[State]):
    """Counts how far the logits moved, and reports why nothing was changed."""

    neutral: ClassVar[Mapping[str, float]] = {"logits": 0.0}

    idle: str = "its strength is zero"
    """Why nothing was changed although there is an image."""

    def why_unchanged(self, generation: Generation[State]) -> str:
        return self.idle
