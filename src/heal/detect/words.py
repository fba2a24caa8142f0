"""Object words of an answer, and the tokens that write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from heal.token_spans import Span, decoded, token_spans, tokens_between
from heal.world.mentions import Mention, mentions

Find = Callable[[str], list[Mention]]
COCO, WORLD = "coco", "world"


@runtime_checkable
class Word(Protocol):
    """What features need to know of an object word."""

    @property
    def category(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


@dataclass(frozen=True)
class ObjectWord:
    """A mention of an object in an answer."""

    category: str
    text: str
    start: int
    """Its first token."""
    stop: int
    """The end of its last token."""
    span: Span
    """Its characters [start, stop) in the decoded tokens."""


@lru_cache(maxsize=8)
def finder(words: str) -> Find:
    """Finds the object words of a text. `words` is coco (the words of CHAIR), world (those of the miniature world) or
    the path of a table of synonyms."""
    if words == WORLD:
        return mentions
    from heal.bench.tasks.chair_mentions import chair_finder
    from heal.bench.tasks.synonyms import load

    return chair_finder(load(None if words == COCO else Path(words)))


def object_words(tokenizer: Any, ids: Sequence[int], find: Find) -> list[ObjectWord]:
    """The object words of these tokens, in order, with repeats. A special token is no object word."""
    special = set(tokenizer.all_special_ids)
    text, spans = decoded(tokenizer, ids), token_spans(tokenizer, ids)
    found = []
    for mention in find(text):
        own = tokens_between(spans, mention.start, mention.stop)
        if any(ids[index] not in special for index in own):
            span = (mention.start, mention.stop)
            found.append(ObjectWord(mention.category, text[slice(*span)], own.start, own.stop, span))
    return found
