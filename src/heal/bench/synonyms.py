"""The table of CHAIR: which words name which category, and which two words are one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

from heal.bench.lemmas import lemma
from heal.bench.records import read_text
from heal.bench.words import tokens
from heal.errors import DataError

OWN = Path(__file__).parent / "data" / "synonyms.txt"

# two words that are one, as the official metric has them
PAIRS = (
    "motor bike", "motor cycle", "air plane", "traffic light", "street light", "traffic signal", "stop light",
    "fire hydrant", "stop sign", "parking meter", "suit case", "sports ball", "baseball bat", "baseball glove",
    "tennis racket", "wine glass", "hot dog", "cell phone", "mobile phone", "teddy bear", "hair drier",
    "potted plant", "laptop computer", "stove top oven", "home plate", "train track",
)  # fmt: skip
ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "animal", "cub")
VEHICLES = ("jet", "train")


def double_words() -> dict[str, str]:
    """Two words and what they count as: a baby elephant is no baby, a passenger train no passenger."""
    found = {pair: pair for pair in PAIRS}
    found |= {f"{age} {animal}": animal for animal in ANIMALS for age in ("baby", "adult")}
    found |= {f"passenger {vehicle}": vehicle for vehicle in VEHICLES}
    return found | {"bow tie": "tie", "toilet seat": "toilet", "wine glas": "wine glass"}


@dataclass(frozen=True, eq=False)
class Synonyms:
    """Word to category."""

    category: dict[str, str]

    @cached_property
    def categories(self) -> frozenset[str]:
        return frozenset(self.category.values())

    @cached_property
    def doubles(self) -> dict[str, str]:
        """The official ones, and pairs of this table whose last word alone would be missed or mistaken."""
        own = {
            pair: pair
            for pair, meaning in self.category.items()
            if pair.count(" ") == 1 and self.category.get(pair.split()[1]) != meaning
        }
        return own | double_words()

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Every word that can take part in a mention."""
        return frozenset(part for name in (*self.category, *self.doubles) for part in name.split())

    def words(self, text: str) -> list[str]:
        """Lower-case base forms, double words merged: what the official metric counts as words."""
        found = tokens(text.lower())
        bases = [lemma(w, b, self.category.keys(), self.vocabulary) for b, w in pairwise(["", *found])]
        merged, at = [], 0
        while at < len(bases):
            pair = self.doubles.get(" ".join(bases[at : at + 2]))
            merged.append(bases[at] if pair is None else pair)
            at += 1 if pair is None else 2
        return merged

    def mentions(self, words: list[str]) -> list[str]:
        """The categories named, in order, repeats included. The seat of a toilet is no chair."""
        if "toilet" in words:
            words = [word for word in words if word != "seat"]
        return [self.category[word] for word in words if word in self.category]


@lru_cache(maxsize=8)
def load(path: Path | None = None) -> Synonyms:
    """The package's own table, or a file: one category a line, its name first, commas between."""
    path = path or OWN
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path, "the GitHub repository LisaAnne/Hallucination").splitlines(), 1):
        names = [" ".join(name.lower().split()) for name in line.split(",")]
        if not line.strip():
            continue
        if not names[0] or any(ch in line for ch in "{}\t"):
            raise DataError(f"{path}, line {number} is not a list of synonyms: category, word, word")
        found |= {name: names[0] for name in names if name}
    if not found:
        raise DataError(f"{path} is empty")
    return Synonyms(found)
