"""Where the guard's risks come from: a fitted detector, log-probabilities, or random numbers as a control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from heal.engine.answers import AnswerTokens
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.methods.guard_sentences import ObjectWord
from heal.methods.guard_words import COCO, Find, finder

if TYPE_CHECKING:
    from heal.methods.guard import Guard
    from heal.methods.heal import HEAL



@runtime_checkable
class RiskSource(Protocol):
    """The risk of each object word of an answer, from what was measured while it was generated."""

    @property
    def threshold(self) -> float:
        """The risk above which a sentence is risky, unless the user gives another."""

    @property
    def find(self) -> Find:
        """Finds the object words of a text."""

    def measurement(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        """The runtime that measures what the risk needs, with HEAL's calibration if `inner` is given."""

    def risks(self, generation: Generation[Any], answer: AnswerTokens, words: Sequence[ObjectWord]) -> list[float]:
        """The risk of each of these words, which are all object words of the answer so far, in order."""


@dataclass(frozen=True)
class LogprobRisk:
    """1 − the probability of the first token of a word."""

    threshold: float
    find: Find

    def measurement(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        return Runtime() if inner is None else inner.runtime(layout, trace)

    def risks(self, generation: Generation[Any], answer: AnswerTokens, words: Sequence[ObjectWord]) -> list[float]:
        from heal.methods.guard_runtime import logprob

        return [1 - math.exp(logprob(generation, answer, word.start)) for word in words]


@dataclass(frozen=True)
class RandomRisk:
    """A number between 0 and 1 for each word, which depends on the answer up to it and the seed only."""

    threshold: float
    find: Find
    seed: int

    def measurement(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        return Runtime() if inner is None else inner.runtime(layout, trace)

    def risks(self, generation: Generation[Any], answer: AnswerTokens, words: Sequence[ObjectWord]) -> list[float]:
        return [_uniform(self.seed, answer.ids[: word.stop]) for word in words]


def _uniform(seed: int, ids: Sequence[int]) -> float:
    digest = sha256(repr((seed, tuple(ids))).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def risk_source(config: Guard, layout: Layout) -> RiskSource:
    """The source of risks that the options name, for the model of this layout."""
    find = finder(config.words or COCO)
    if config.risk == "random":
        return RandomRisk(config.threshold or 0.0, find, config.seed)
    return LogprobRisk(config.threshold or 0.0, find)
