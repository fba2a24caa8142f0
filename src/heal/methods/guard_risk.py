"""Where the guard's risks come from: a fitted detector, log-probabilities, or random numbers as a control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.measured import TokenValues, measured
from heal.methods.guard_sentences import ObjectWord
from heal.methods.guard_words import COCO, ObjectWords, object_words
from heal.methods.observer import observer

if TYPE_CHECKING:
    from heal.detect.model import Detector
    from heal.methods.guard import Guard
    from heal.methods.heal import HEAL


@runtime_checkable
class RiskSource(Protocol):
    """The risk of each object word of an answer, from what was measured while it was generated."""

    @property
    def threshold(self) -> float:
        """The risk above which a sentence is risky, unless the user gives another."""

    @property
    def words(self) -> ObjectWords:
        """The words that name objects."""

    def measurement(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        """The runtime that measures what the risk needs, with HEAL's calibration if `inner` is given."""

    def risks(self, generation: Generation[Any], tokens: TokenValues, found: Sequence[ObjectWord]) -> list[float]:
        """The risk of each object word of the answer so far. All of them are given, in order."""


@dataclass(frozen=True, eq=False)
class DetectorRisk:
    """The risk that the detector gives a word at its first token."""

    detector: Detector
    words: ObjectWords
    layout: Layout

    @property
    def threshold(self) -> float:
        return self.detector.threshold

    def measurement(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        return (inner or observer(self.detector.options)).runtime(layout, trace=True)

    def risks(self, generation: Generation[Any], tokens: TokenValues, found: Sequence[ObjectWord]) -> list[float]:
        from heal.detect.features import features

        known = measured(generation.state, self.layout, tokens)
        risk = self.detector.risk(features(known, found, self.detector.families))
        return [float(risk[word.start]) for word in found]


@dataclass(frozen=True)
class LogprobRisk:
    """1 − the probability of the first token of a word."""

    threshold: float
    words: ObjectWords

    def measurement(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        return Runtime() if inner is None else inner.runtime(layout, trace)

    def risks(self, generation: Generation[Any], tokens: TokenValues, found: Sequence[ObjectWord]) -> list[float]:
        return [float(1 - np.exp(tokens.logprobs[word.start])) for word in found]


@dataclass(frozen=True)
class RandomRisk:
    """A number between 0 and 1 for each sentence, which depends on the seed and the answer up to its first object."""

    threshold: float
    words: ObjectWords
    seed: int

    def measurement(self, inner: HEAL | None, layout: Layout, trace: bool) -> Runtime[Any]:
        return Runtime() if inner is None else inner.runtime(layout, trace)

    def risks(self, generation: Generation[Any], tokens: TokenValues, found: Sequence[ObjectWord]) -> list[float]:
        first = {word.sentence: word.stop for word in reversed(found)}
        return [_uniform(self.seed, tokens.ids[: first[word.sentence]]) for word in found]


def _uniform(seed: int, ids: Sequence[int]) -> float:
    digest = sha256(repr((seed, tuple(ids))).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def risk_source(config: Guard, layout: Layout) -> RiskSource:
    """The source of risks that the options name, for the model of this layout."""
    if config.risk == "detector":
        from heal.detect.model import Detector  # detection builds on methods

        found = Detector.of_model(layout.model) if config.detector is None else Detector.load(config.detector)
        found.check(len(layout.layers), layout.heads)
        return DetectorRisk(found, object_words(config.words or found.words), layout)
    words = object_words(config.words or COCO)
    if config.risk == "random":
        return RandomRisk(config.threshold or 0.0, words, config.seed)
    return LogprobRisk(config.threshold or 0.0, words)
