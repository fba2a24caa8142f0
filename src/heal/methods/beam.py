"""Beam search, as a method: the baseline that most papers compare with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.errors import ConfigError
from heal.methods.base import Method, register
from heal.methods.counting import CountingRuntime

MOST = 256
"""Each beam is a row of the batch."""


@register
@dataclass(frozen=True)
class Beam(Method):
    """Keep several hypotheses and take the likeliest whole answer."""

    name: ClassVar[str] = "beam"
    summary: ClassVar[str] = "beam search: the likeliest of several answers"
    paper: ClassVar[str] = "transformers' own beam search, with the settings of OPERA (2024)"
    searches: ClassVar[bool] = True

    beams: int = 5
    """Hypotheses that are kept. 1: greedy."""

    length_penalty: float = 1.0
    """Exponent of the length that scores are divided by: more favours longer answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.beams, int) or not 1 <= self.beams <= MOST:
            raise ConfigError(f"beams must be a whole number from 1 on, at most {MOST}, not {self.beams!r}")
        if not math.isfinite(self.length_penalty):
            raise ConfigError(f"length_penalty must be a finite number, not {self.length_penalty}")

    def generate_options(self) -> dict[str, object]:
        options: dict[str, object] = {"num_beams": self.beams}
        return options | ({"length_penalty": self.length_penalty} if self.beams > 1 else {})

    def runtime(self, layout: Layout, trace: bool) -> Runtime[State]:
        return _BeamRuntime(self)


class _BeamRuntime(CountingRuntime):
    """Its effect is the tokens that the search chose against the likeliest one."""

    neutral: ClassVar[Mapping[str, float]] = {"beams": 1.0}
    needs_picture = False

    def __init__(self, config: Beam) -> None:
        self.config = config
        self.idle = (
            "one beam is greedy decoding" if config.beams == 1 else "the search chose the likeliest token each time"
        )

    def after_pass(self, generation: Generation[State]) -> None:
        generation.tally.add(
            torch.full((generation.rows, 1), float(self.config.beams), device=generation.groups.device)
        )
