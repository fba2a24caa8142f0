"""Beam search: the baseline of most papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.counting import CountingRuntime

MOST_BEAMS = 256


@register
@dataclass(frozen=True)
class Beam(Method):
    """Keep several hypotheses and return the one with the highest score."""

    name: ClassVar[str] = "beam"
    summary: ClassVar[str] = "beam search: the most likely of several answers"
    paper: ClassVar[str] = "transformers' beam search, with the settings of OPERA (2024)"
    searches: ClassVar[bool] = True

    beams: int = 5
    """Number of hypotheses. 1: greedy."""

    length_penalty: float = 1.0
    """Exponent of the length by which scores are divided. Larger values favour longer answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(self, 1, "beams", high=MOST_BEAMS)
        checks.finite(self, "length_penalty")

    @property
    def rows_per_prompt(self) -> int:
        return self.beams

    def generate_options(self) -> dict[str, object]:
        options: dict[str, object] = {"num_beams": self.beams}
        return options | ({"length_penalty": self.length_penalty} if self.beams > 1 else {})

    def runtime(self, layout: Layout, trace: bool) -> Runtime[State]:
        return _BeamRuntime(self)


class _BeamRuntime(CountingRuntime):
    """Counts the tokens for which the search did not choose the most likely one."""

    neutral: ClassVar[Mapping[str, float]] = {"beams": 1.0}
    needs_image = False

    def __init__(self, config: Beam) -> None:
        self.config = config
        self.idle = (
            "one beam is greedy decoding" if config.beams == 1 else "the search chose the likeliest token each time"
        )

    def after_pass(self, generation: Generation[State]) -> None:
        generation.tally.add(
            torch.full((generation.rows, 1), float(self.config.beams), device=generation.groups.device)
        )
