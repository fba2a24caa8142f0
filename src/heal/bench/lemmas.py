"""Base forms of words, as a tagger and WordNet would give them, for the words that matter: those of a vocabulary.

A dictionary alone (simplemma, installed with its data) misses rare plurals and reads `moped` as a verb. So words of
the vocabulary stay as they are, plurals unknown to it are tried by WordNet's own rules, and participles are read by
the word before them: `is seated` is read as a verb (a seat), `the seating` is not. That last rule stands in for a
tagger; it was chosen on the captions of the golden figures, so those do not confirm it (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

# endings of plurals and what replaces them: the rules of WordNet's morphy for nouns
RULES = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
    ("ies", "y"), ("ves", "f"), ("ves", "fe"),
)  # fmt: skip
ARTICLES = frozenset("a an the this that its his her their one another each".split())
# nouns also without an article
NOUNS = frozenset("bedding building clothing dining housing lighting parking seating shipping training".split())


@lru_cache(maxsize=65536)
def dictionary(word: str) -> str:
    """The base form in the dictionary, in lower case."""
    import simplemma

    return str(simplemma.lemmatize(word, "en")).lower()


def lemma(word: str, before: str, names: Set[str], vocabulary: Set[str]) -> str:
    """The base form of a lower-case word that follows `before`; names stay as they are."""
    if word in names or len(word) < 3 or not word[0].isalpha():
        return word
    if word.endswith(("ed", "ing")):
        return word if before in ARTICLES or word in NOUNS else dictionary(word)
    if word in vocabulary:
        return word
    base = dictionary(word)
    if base in vocabulary:
        return base
    stems = [word[: len(word) - len(end)] + new for end, new in RULES if word.endswith(end)]
    return next((stem for stem in stems if stem in vocabulary), base)
