"""Which things a text names, and where: exact for the words of the miniature world."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from heal.world.categories import CATEGORIES


@dataclass(frozen=True)
class Mention:
    """A category named at [start, stop) of a text."""

    category: str
    start: int
    stop: int


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {
        word: category.name
        for category in CATEGORIES
        for word in (category.name, category.plural, *category.synonyms, *(s + "s" for s in category.synonyms))
    }


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str]:
    # the longest name first: a teddy bear is no bear, a hot dog no dog
    words = sorted(_names(), key=len, reverse=True)
    return re.compile(r"\b(" + "|".join(map(re.escape, words)) + r")\b", re.IGNORECASE)


def mentions(text: str) -> list[Mention]:
    """In the order of the text, repeats included. `orange` as a colour does not exist in this world."""
    return [Mention(_names()[m[0].lower()], m.start(), m.end()) for m in _pattern().finditer(text)]
