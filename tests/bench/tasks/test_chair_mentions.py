"""The finder names what CHAIR's parser names, and its places are those words of the text."""

import pytest

from heal.bench.tasks import synonyms
from heal.bench.tasks.chair_mentions import chair_finder

TABLE = synonyms.load()
FIND = chair_finder(TABLE)

TEXTS = (
    "Two men and a woman are seated at a table with wine glasses, forks and a hot dog.",
    "A teddy bear's head; the puppies (three of them) can't reach the potted plants... Really?",
    "A baby elephant and a passenger train near the stop sign. ''A cat,'' he said -- \"no dogs\".",
    "There is a toilet seat, but no seat. The toilet is white!",
    "İ see 2 cell phones, a 🐕 and  a\n\nbow tie: gonna be fun. St. Mary's bus costs 3.5 dollars.",
    "",
    "...",
    "motor",
)


@pytest.mark.parametrize("text", TEXTS)
def test_categories_are_those_of_the_metric(text):
    assert [m.category for m in FIND(text)] == TABLE.mentions(TABLE.words(text))


def test_places():
    text = "A  teddy bear’s 2 wine\nglasses, and puppies."
    assert [(m.category, text[m.start : m.stop]) for m in FIND(text)] == [
        ("teddy bear", "teddy bear"),
        ("wine glass", "wine\nglasses"),
        ("dog", "puppies"),
    ]


def test_every_synonym_is_found_where_it_is():
    for word, category in TABLE.category.items():
        text = f"I see “the {word}”, I think."
        found = FIND(text)
        assert [m.category for m in found] == TABLE.mentions(TABLE.words(text))
        for m in found:
            if m.category == category:
                assert text[m.start : m.stop] in word
