"""Divide an answer into sentences, and judge each by the risk of its object words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from heal.engine.answers import Kept, Sentence
from heal.token_spans import Span, tokens_between
from heal.world.mentions import Mention

_ENDS = re.compile(r"[.!?][\"')\]]*(?=\s)|(?<=\S)(?=\n)")
_NUMBER = re.compile(r"\s*\d+\.")


@dataclass(frozen=True)
class ObjectWord:
    """A mention of an object in an answer."""

    category: str
    text: str
    start: int
    """Its first token."""
    stop: int
    """The end of its last token."""
    sentence: int = 0
    """The number of its sentence."""


@dataclass(frozen=True)
class Risk:
    """An object word with the probability that it is hallucinated."""

    word: ObjectWord
    value: float


def sentence_spans(text: str, finished: bool) -> list[Span]:
    """The characters of each sentence. White space belongs to the sentence after it.

    A sentence ends with a full stop, an exclamation or question mark before white space, or with the line; the
    number of a list item is no sentence. The last one, which may be incomplete, counts only in a finished text.
    """
    found: list[Span] = []
    start = 0
    for match in _ENDS.finditer(text):
        if match.end() > start and not _NUMBER.fullmatch(text[start : match.end()]):
            found.append((start, match.end()))
            start = match.end()
    if finished and text[start:].strip():
        found.append((start, len(text)))
    elif finished and found:
        found[-1] = (found[-1][0], len(text))
    return found


def token_ranges(sentences: Sequence[Span], tokens: Sequence[Span]) -> list[Span]:
    """The tokens of each sentence: a token belongs to the sentence in which it begins."""
    found: list[Span] = []
    first = 0
    for index, (_, stop) in enumerate(sentences):
        if index == len(sentences) - 1 and stop >= tokens[-1][1]:
            end = len(tokens)
        else:
            end = next((i for i in range(first, len(tokens)) if tokens[i][0] >= stop), len(tokens))
        found.append((first, end))
        first = end
    return found


def object_word(category: str, text: str, span: Span, tokens: Sequence[Span], sentence: int = 0) -> ObjectWord:
    """A mention at these characters of an answer with these tokens."""
    own = tokens_between(tokens, *span)
    return ObjectWord(category, text[slice(*span)], own.start, own.stop, sentence)


def words_in(
    text: str, sentences: Sequence[Span], tokens: Sequence[Span], find: Callable[[str], list[Mention]]
) -> list[ObjectWord]:
    """All mentions of objects in these sentences, in order."""
    words = []
    for number, (first, last) in enumerate(sentences):
        # what follows a sentence must not change how it is read
        found = [mention for mention in find(text[:last]) if mention.start >= first]
        words += [object_word(m.category, text, (m.start, m.stop), tokens, number) for m in found]
    return words


@dataclass(frozen=True)
class Attempts:
    """How a sentence was generated again."""

    count: int = 0
    point: int = 0
    """The first token that was chosen again."""
    objects: frozenset[str] = frozenset()
    """The categories that may not occur in it any more."""


@dataclass(frozen=True)
class Judged:
    """A sentence with the risks of its object words."""

    start: int
    """Its first token."""
    stop: int
    text: str
    risks: tuple[Risk, ...]

    def sentence(self, attempts: Attempts) -> Sentence:
        """The sentence with its riskiest word."""
        worst = max(self.risks, key=lambda risk: risk.value, default=None)
        return Sentence(
            self.start,
            self.stop,
            self.text,
            None if worst is None else worst.value,
            None if worst is None else worst.word.text,
            tries=attempts.count,
        )


def judged(text: str, spans: Sequence[Span], tokens: Sequence[Span], risks: Sequence[Risk]) -> list[Judged]:
    """The sentences of an answer, each with the risks of its words."""
    return [
        Judged(start, stop, text[first:last].strip(), tuple(r for r in risks if start <= r.word.start < stop))
        for (first, last), (start, stop) in zip(spans, token_ranges(spans, tokens), strict=True)
    ]


def decided(sentences: Sequence[Sentence], threshold: float, drop: bool, finished: bool) -> Kept:
    """Mark the sentences whose risk exceeds the threshold, and leave them out with `drop`.

    A finished answer keeps at least one sentence: the least risky.
    """
    found = []
    for sentence in sentences:
        risky = sentence.risk is not None and sentence.risk > threshold
        found.append(replace(sentence, marked=risky, kept=not (risky and drop)))
    if finished and found and not any(sentence.kept for sentence in found):
        least = min(range(len(found)), key=lambda index: found[index].risk or 0.0)
        found[least] = replace(found[least], kept=True)
    tokens = tuple(token for sentence in found if sentence.kept for token in range(sentence.start, sentence.stop))
    return Kept(found[-1].stop if found else 0, tokens, tuple(found))
