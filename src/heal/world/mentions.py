"""Find object names in a text; exact for the words of the miniature world."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from heal.world.categories import CATEGORIES


@dataclass(frozen=True)
class Mention:
    """A category mentioned at [start, stop) of a text."""

    category: str
    start: int
    stop: int


@lru_cache(maxsize=1)
def names() -> dict[str, str]:
    """All words of the miniature world with their categories."""
    return {
        word: category.name
        for category in CATEGORIES
        for word in (category.name, category.plural, *category.synonyms, *(s + "s" for s in category.synonyms))
    }


class Finder:
    """Finds words in any case, longest first: a teddy bear is not a bear, a hot dog not a dog."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = {word.lower(): category for word, category in names.items()}
        words = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(r"\b(" + "|".join(map(re.escape, words)) + r")\b", re.IGNORECASE)

    def __call__(self, text: str) -> list[Mention]:
        """All mentions in the order of the text, with repeats."""
        return [Mention(self._names[m[0].lower()], m.start(), m.end()) for m in self._pattern.finditer(text)]


@lru_cache(maxsize=1)
def _finder() -> Finder:
    return Finder(names())


def mentions(text: str) -> list[Mention]:
    """Mentions of the objects of the miniature world, in the order of the text, with repeats."""
    return _finder()(text)
