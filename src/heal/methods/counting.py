"""What the methods beside HEAL share: state that follows the rows, and the count of what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from heal.analysis.split import VISUAL
from heal.engine.generation import Generation
from heal.engine.runtime import Runtime
from heal.methods.base import Tally


class RowState:
    """Tensors whose first axis is the rows of a generation, and the count of what was changed in it."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
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
    """What is counted, and the value of each that changes nothing."""

    idle: str = "its strength is zero"
    """Why it does nothing, when it does nothing with a picture before it."""

    def __init__(self) -> None:
        self.tallies: list[Tally] = []

    def begin(self, generation: Generation) -> None:
        generation.data = RowState(Tally(**self.neutral))
        self.tallies.append(generation.data.tally)

    def silence(self, generation: Generation) -> str | None:
        if generation.data is None:
            self.tallies.append(tally := Tally(**self.neutral))
            tally.reason = "the prompt has no visual tokens, so this was the plain model"
            return tally.reason
        tally = generation.data.tally
        if any(bool(step[0].sum() > 0) for step in tally.steps):
            return None
        tally.reason = self.idle
        return tally.reason
