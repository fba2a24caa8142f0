"""What the methods beside HEAL share: state that follows the rows, and why nothing was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from heal.analysis.split import VISUAL
from heal.engine.generation import Generation
from heal.engine.runtime import Runtime


class RowState:
    """Tensors whose first axis is the rows of a generation."""

    records: tuple[()] = ()
    """These methods measure nothing per head: their traces have tokens alone."""

    def __init__(self) -> None:
        self.rows: dict[str, Tensor] = {}

    def select(self, rows: list[int]) -> None:
        for name, value in self.rows.items():
            self.rows[name] = value.index_select(0, torch.tensor(rows, device=value.device))


def seeing(generation: Generation) -> Bool[Tensor, " rows"]:
    """Rows with a picture: in a mixed batch the others stay as they would be alone."""
    return (generation.owners == VISUAL).any(1)


class CountingRuntime(Runtime):
    """Begins a state for every generation and says why nothing was changed, if nothing was."""

    neutral: ClassVar[Mapping[str, float]] = {"logits": 0.0}

    idle: str = "its strength is zero"
    """Why it does nothing, when it does nothing with a picture before it."""

    def begin(self, generation: Generation) -> None:
        generation.data = RowState()

    def why_unchanged(self, generation: Generation) -> str:
        return self.idle
