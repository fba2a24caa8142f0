"""The objects that CHAIR reads in a caption, with their places in the text."""

from __future__ import annotations

from collections.abc import Callable

from heal.bench.tasks.lemmas import lemma
from heal.bench.tasks.synonyms import Synonyms
from heal.bench.tasks.word_tokens import tokens
from heal.world.mentions import Mention

Word = tuple[str, int, int]
"""A lower-case word and its place [start, stop) in the text."""


def chair_finder(table: Synonyms) -> Callable[[str], list[Mention]]:
    """A function that finds the mentions of a text: the categories of `table.mentions`, in the same order."""

    def find(text: str) -> list[Mention]:
        words = _lemmas(_placed(text), table)
        toilet = any(word == "toilet" for word, _, _ in words)
        return [
            Mention(table.category[word], start, stop)
            for word, start, stop in words
            if word in table.category and not (toilet and word == "seat")
        ]

    return find


def _placed(text: str) -> list[Word]:
    """The word tokens of a text with their places. Between two tokens there is only white space."""
    # a few letters, such as İ, have more than one character in lower case
    lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    found, at = [], 0
    for token in tokens(lower):
        while lower[at].isspace():
            at += 1
        size = len(token) if lower.startswith(token, at) else 2  # '' is read as "
        found.append((token, at, at + size))
        at += size
    return found


def _lemmas(words: list[Word], table: Synonyms) -> list[Word]:
    """Lemmas by the rules of this package, with two-word names merged."""
    plain = ["", *(word for word, _, _ in words), ""]
    bases = [lemma(plain[i], plain[i - 1], plain[i + 1], table.vocabulary) for i in range(1, len(plain) - 1)]
    found: list[Word] = []
    at = 0
    while at < len(bases):
        pair = table.doubles.get(" ".join(bases[at : at + 2])) if at + 1 < len(bases) else None
        last = at if pair is None else at + 1
        found.append((bases[at] if pair is None else pair, words[at][1], words[last][2]))
        at = last + 1
    return found
