"""The synonym table of CHAIR: words for each category, and two-word names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heal.bench.tasks import nltk_lemmas
from heal.bench.tasks.data_files import read_text
from heal.bench.tasks.lemmas import lemma
from heal.bench.tasks.word_tokens import tokens
from heal.errors import ConfigError, DataError

LEMMATIZERS = ("rules", "nltk")
OWN = Path(__file__).parents[1] / "data" / "synonyms.txt"

# two-word names, as in the official metric
PAIRS = (
    "motor bike", "motor cycle", "air plane", "traffic light", "street light", "traffic signal", "stop light",
    "fire hydrant", "stop sign", "parking meter", "suit case", "sports ball", "baseball bat", "baseball glove",
    "tennis racket", "wine glass", "hot dog", "cell phone", "mobile phone", "teddy bear", "hair drier",
    "potted plant", "laptop computer", "stove top oven", "home plate", "train track",
)  # fmt: skip
ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "animal", "cub")
VEHICLES = ("jet", "train")


def double_words() -> dict[str, str]:
    """Two-word names and their replacements: a baby elephant is not a baby, a passenger train not a passenger."""
    found = {pair: pair for pair in PAIRS}
    found |= {f"{age} {animal}": animal for animal in ANIMALS for age in ("baby", "adult")}
    found |= {f"passenger {vehicle}": vehicle for vehicle in VEHICLES}
    return found | {"bow tie": "tie", "toilet seat": "toilet", "wine glas": "wine glass"}


@dataclass(frozen=True, eq=False)
class Synonyms:
    """Maps words to categories and lemmatizes texts."""

    category: dict[str, str]
    lemmatizer: str = "rules"
    """rules (needs no data) or nltk (POS tags and WordNet)."""

    @property
    def lemmas(self) -> str:
        """Name and version of the lemmatizer, for result tables."""
        return f"nltk {nltk_lemmas.version()}" if self.lemmatizer == "nltk" else self.lemmatizer

    @cached_property
    def categories(self) -> frozenset[str]:
        return frozenset(self.category.values())

    @cached_property
    def doubles(self) -> dict[str, str]:
        """The official two-word names, and those of this table whose last word alone would be missed or misread."""
        own = {
            pair: pair
            for pair, meaning in self.category.items()
            if pair.count(" ") == 1 and self.category.get(pair.split()[1]) != meaning
        }
        return own | double_words()

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """All words that can be part of a mention."""
        return frozenset(part for name in (*self.category, *self.doubles) for part in name.split())

    def words(self, text: str) -> list[str]:
        """Lower-case lemmas with two-word names merged: the words of the official metric."""
        bases = nltk_lemmas.bases(text) if self.lemmatizer == "nltk" else self._bases(text)
        merged, at = [], 0
        while at < len(bases):
            pair = self.doubles.get(" ".join(bases[at : at + 2]))
            merged.append(bases[at] if pair is None else pair)
            at += 1 if pair is None else 2
        return merged

    def _bases(self, text: str) -> list[str]:
        found = ["", *tokens(text.lower()), ""]
        near = zip(found, found[1:], found[2:], strict=False)
        return [lemma(word, before, after, self.vocabulary) for before, word, after in near]

    def mentions(self, words: list[str]) -> list[str]:
        """The mentioned categories in order, with repeats. A toilet seat is not a chair."""
        if "toilet" in words:
            words = [word for word in words if word != "seat"]
        return [self.category[word] for word in words if word in self.category]


def load(path: Path | None = None, lemmatizer: str = "rules") -> Synonyms:
    """Load the table of this package, or a file with one category per line: name, synonym, synonym …

    With the lemmatizer nltk, names after two spaces or with capital letters are ignored, as in the published scripts.
    """
    if lemmatizer not in LEMMATIZERS:
        raise ConfigError(f"lemmatizer must be one of {', '.join(LEMMATIZERS)}, not {lemmatizer!r}")
    if lemmatizer == "nltk":
        nltk_lemmas.version()
    path = path or OWN
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path, "the GitHub repository LisaAnne/Hallucination").splitlines(), 1):
        names = [" ".join(name.lower().split()) for name in line.split(",")]
        if not line.strip():
            continue
        if not names[0] or any(ch in line for ch in "{}\t"):
            raise DataError(f"{path}, line {number} is not a list of synonyms: category, word, word")
        if lemmatizer == "nltk":
            exact = set(line.strip().split(", "))
            names = [names[0], *(name for name in names if name in exact)]
        found |= {name: names[0] for name in names if name}
    if not found:
        raise DataError(f"{path} is empty")
    return Synonyms(found, lemmatizer)
