"""The words that name objects, for the guard: those of CHAIR, of the miniature world, or of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from heal.world.mentions import Mention, names

Find = Callable[[str], list[Mention]]
COCO, WORLD = "coco", "world"


@dataclass(frozen=True, eq=False)
class ObjectWords:
    """Object words and their categories."""

    find: Find
    """Finds the mentions of a text, in order, with repeats."""
    category: Mapping[str, str]
    """The category of each word."""

    def single_tokens(self, tokenizer: Any, category: str) -> frozenset[int]:
        """The tokens that are a name of a category by themselves: a word, its plural, with or without a space."""
        words = {word for word, own in self.category.items() if own == category}
        forms = {form for word in words for form in _forms(word)}
        return frozenset(token for form in sorted(forms) for token in _alone(tokenizer, form))


def _forms(word: str) -> Iterable[str]:
    for form in (word, word + "s", word + "es"):
        yield from (form, form.capitalize(), f" {form}", f" {form.capitalize()}")


def _alone(tokenizer: Any, text: str) -> list[int]:
    """The token of a text if it is one token that decodes to it."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids if len(ids) == 1 and tokenizer.decode(ids).strip() == text.strip() else []


@lru_cache(maxsize=8)
def object_words(words: str) -> ObjectWords:
    """`words` is coco, world or the path of a table of synonyms."""
    from heal.bench.tasks.synonyms import load  # benchmarks and detection build on methods
    from heal.detect.words import finder

    category = names() if words == WORLD else load(None if words == COCO else Path(words)).category
    return ObjectWords(finder(words), category)
