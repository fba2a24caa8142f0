"""Fluency and BLEU of texts, against sacrebleu and by hand."""

import json
from dataclasses import replace

import pytest
from sacrebleu.metrics.bleu import BLEU

from heal.bench.tasks.base import totals
from heal.errors import DataError
from heal.studies.setup import Setup
from heal.studies.text_quality import bleu_counts, bleu_score, fluency_counts, fluency_score, references
from tests.bench import official
from tests.studies.test_setup import write

TEXTS = ["There is a red car near the boat.", "A dog sits on the left of the image.", "The scene is calm and clear."]
REFERENCES = [
    ["There is a red car in the scene.", "A red car near the boat."],
    ["A dog is on the left of the image.", "There is a dog."],
    ["The scene is calm and clear.", "Everything is easy to see."],
]


def test_bleu_of_summed_counts_is_that_of_the_corpus():
    counts = [bleu_counts(text, known) for text, known in zip(TEXTS, REFERENCES, strict=True)]
    expected = BLEU().corpus_score(TEXTS, [list(column) for column in zip(*REFERENCES, strict=True)]).score
    assert bleu_score(totals(counts))["bleu"] == pytest.approx(expected)
    assert 20 < expected < 90


def test_bleu_without_a_common_word_is_nothing():
    assert bleu_score(bleu_counts("one two three four five", ["a b c d e f"]))["bleu"] == 0


def test_repeated_n_grams_by_hand():
    assert fluency_counts("a b c d a b c d.", False) == {"answers": 1, "cut": 0, "grams": 6, "repeated": 1}
    assert fluency_counts("A dog.", True) == {"answers": 1, "cut": 1, "grams": 0, "repeated": 0}
    found = fluency_score(totals([fluency_counts("a b c d a b c d", False), fluency_counts("A dog.", True)]))
    assert (found["repeated"], found["cut"]) == (20, 50)


def test_references_of_scenes():
    setup = Setup(samples=2)
    found = references(setup, "natural")
    assert not isinstance(found, str)
    first, second = setup.captions("natural")
    assert list(found) == [first.id, second.id]
    assert len(set(found[first.id])) == 5
    named = {mention.category for text in found[first.id] for mention in setup.find(text)}
    assert named == set(first.truth["objects"])


def test_references_of_photos(tmp_path):
    setup = Setup.on(write(tmp_path, official.chair()))
    missing = references(setup, "official")
    assert missing == f"no reference captions: put captions_val2014.json of COCO 2014 into {tmp_path / 'annotations'}"
    notes = [{"image_id": 1, "caption": "A dog."}, {"image_id": 3, "caption": "A cat."}]
    notes += [{"image_id": 1, "caption": "One dog."}, {"image_id": 9, "caption": "A car."}]
    write(tmp_path, {"annotations/captions_val2014.json": json.dumps({"annotations": notes})})
    assert references(setup, "official") == {"3": ["A cat."], "1": ["A dog.", "One dog."]}
    assert references(replace(setup, samples=1), "official") == {"3": ["A cat."]}
    write(tmp_path, {"annotations/captions_val2014.json": json.dumps({"annotations": [{"image_id": 1}]})})
    with pytest.raises(DataError, match="annotation 1 has no `caption`"):
        references(setup, "official")
