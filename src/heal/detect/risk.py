"""The risk of every token of an answer, and the reasons at its object words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heal.detect.features import FAMILIES, Measurements, features
from heal.detect.model import Detector
from heal.detect.words import Find, ObjectWord, finder, object_words
from heal.token_spans import Span

REASONS = 3
"""Number of reasons that are told for each word."""


@dataclass(frozen=True)
class Reason:
    """What raised or lowered a risk."""

    about: str
    log_odds: float
    """Its contribution to the log-odds, compared with the average object word. Positive: it raises the risk."""


@dataclass(frozen=True)
class ObjectRisk:
    """An object word of an answer with the probability that it is hallucinated."""

    text: str
    category: str
    span: Span
    """Its characters [start, stop) in the text of the answer."""
    tokens: tuple[int, int]
    """Its tokens [start, stop)."""
    risk: float
    reasons: tuple[Reason, ...]
    """The largest contributions first."""


@dataclass(frozen=True)
class Judged:
    """The risks of one answer."""

    risk: tuple[float, ...]
    """For each token, the probability that an object word which starts there is hallucinated."""
    objects: tuple[ObjectRisk, ...]
    """All object words, in order."""
    threshold: float

    @property
    def doubtful(self) -> tuple[ObjectRisk, ...]:
        """The object words whose risk is at least the threshold."""
        return tuple(word for word in self.objects if word.risk >= self.threshold)


def judge(
    detector: Detector,
    measured: Measurements,
    tokenizer: Any,
    ids: Sequence[int],
    text: str,
    steps: Sequence[int] | None = None,
) -> Judged:
    """The risks of an answer with these tokens. `text` is the text that the user reads.

    `steps` are the tokens that this text consists of, if a method left others out. The model has read them all, so
    they all count for the features.
    """
    find = finder(detector.words)
    words = object_words(tokenizer, ids, find)
    found = features(measured, words, detector.families)
    risk = detector.risk(found)
    place = {step: index for index, step in enumerate(range(len(ids)) if steps is None else steps)}
    words = [word for word in words if word.start in place]
    objects = [
        ObjectRisk(
            text[slice(*span)],
            word.category,
            span,
            (place[word.start], place[word.stop - 1] + 1),
            float(risk[word.start]),
            tuple(
                Reason(FAMILIES[name].subject, value)
                for name, value in detector.contributions(found, word.start)[:REASONS]
            ),
        )
        for word, span in _shown(words, text, find)
    ]
    return Judged(tuple(risk[list(place)].tolist()), tuple(objects), detector.threshold)


def unknown(detector: Detector, tokens: int) -> Judged:
    """The risks of an answer to a prompt without an image: they are not defined."""
    return Judged((float(np.nan),) * tokens, (), detector.threshold)


def _shown(words: Sequence[ObjectWord], text: str, find: Find) -> list[tuple[ObjectWord, Span]]:
    """The object words with their characters in the text of the answer, which has no special tokens."""
    shown = find(text)
    if [mention.category for mention in shown] != [word.category for word in words]:
        return []  # a special token reads as an object word
    return [(word, (mention.start, mention.stop)) for word, mention in zip(words, shown, strict=True)]
