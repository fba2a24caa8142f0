"""The words that name objects, for the guard: those of CHAIR, of the miniature world, or of a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from heal.world.mentions import Mention, mentions

Find = Callable[[str], list[Mention]]
COCO, WORLD = "coco", "world"


@lru_cache(maxsize=8)
def finder(words: str) -> Find:
    """Finds the object words of a text. `words` is coco, world or the path of a table of synonyms."""
    if words == WORLD:
        return mentions
    from heal.bench.tasks.chair_mentions import chair_finder
    from heal.bench.tasks.synonyms import load

    return chair_finder(load(None if words == COCO else Path(words)))
