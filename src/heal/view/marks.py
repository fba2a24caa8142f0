"""Find object names in an answer and mark them as correct or hallucinated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

from heal.view.format import utf16
from heal.world.mentions import Finder, Mention, mentions

Find = Callable[[str], list[Mention]]
EMBEDDED = "embedded"
ENDINGS = (("y", "ies"), ("man", "men"), ("fe", "ves"), ("f", "ves"), ("ch", "ches"), ("sh", "shes"), ("s", "ses"))


def finder(model: str) -> Find:
    """The names that a model uses: the words of the miniature world, or the synonyms of CHAIR."""
    return mentions if model == EMBEDDED else _captions()


def marks(text: str, objects: Collection[str], find: Find) -> list[dict[str, Any]]:
    """The object names of a text, in UTF-16 positions, each with its category and whether the object is present.

    Present objects that `find` does not know are looked for by their own name.
    """
    found = find(text)
    known = {mention.category for mention in found}
    names = {name: name for name in objects if name and name not in known}
    if names:
        taken = {at for mention in found for at in range(mention.start, mention.stop)}
        found = [*found, *(m for m in Finder(names)(text) if taken.isdisjoint(range(m.start, m.stop)))]
    return [
        {
            "start": utf16(text, mention.start),
            "stop": utf16(text, mention.stop),
            "category": mention.category,
            "correct": mention.category in objects,
        }
        for mention in sorted(found, key=lambda mention: mention.start)
    ]


@lru_cache(maxsize=1)
def _captions() -> Finder:
    from heal.bench.tasks.synonyms import load

    table = load()
    pairs = {form: category for word, category in table.category.items() for form in _forms(word)}
    return Finder(pairs | table.category)


def _forms(word: str) -> list[str]:
    """A word and its possible plurals."""
    return [word, f"{word}s", *(word.removesuffix(end) + plural for end, plural in ENDINGS if word.endswith(end))]
