"""CHAIR: tokens, mentions, figures computed by hand, reference figures, and unknown ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heal.bench import create
from heal.bench.tasks import synonyms
from heal.bench.tasks.base import figures, unit_counts
from heal.bench.tasks.catalogue import options_of, restore
from heal.bench.tasks.chair import complete_sentences, score_files
from heal.bench.tasks.image_files import image_key
from heal.bench.tasks.lemmas import lemma
from heal.bench.tasks.synonyms import double_words
from heal.bench.tasks.word_tokens import tokens
from heal.errors import DataError
from heal.world.categories import CATEGORIES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog, a cat.", "A dog , a cat ."),
        ("It's here. Don't go!", "It 's here . Do n't go !"),
        ("a black-and-white cat (asleep)", "a black-and-white cat ( asleep )"),
        ('He said "stop." Then', 'He said " stop . " Then'),
        ("3.5 m, 1,000 km; 10:30", "3.5 m , 1,000 km ; 10:30"),
        ("wait... what", "wait ... what"),
        ("the dogs' toys\n\nand more", "the dogs ' toys and more"),
        ("I cannot, I'm gonna", "I can not , I 'm gon na"),
        ("the 'stop' sign", "the ' stop ' sign"),
        ("a man’s “dog”", "a man ’ s “ dog ”"),
        ("men's room, dogs' toys, tv's", "men 's room , dogs ' toys , tv 's"),
        ("a t-shirt and a hot-dog", "a t-shirt and a hot-dog"),
        ("a dog—a cat", "a dog — a cat"),
        ("bus no. 395. the end. at 5 a.m. it", "bus no . 395. the end . at 5 a.m. it"),
        ("see mr. smith, e.g. here in 1995.", "see mr. smith , e.g . here in 1995 ."),
        ("", ""),
    ],
)
def test_tokens(text: str, expected: str) -> None:
    assert " ".join(tokens(text)) == expected


@pytest.mark.parametrize(
    ("word", "base"),
    [
        ("dogs", "dog"),
        ("buses", "bus"),
        ("busses", "bus"),
        ("knives", "knife"),
        ("women", "woman"),
        ("gentlemen", "gentleman"),
        ("children", "child"),
        ("geese", "goose"),
        ("mice", "mouse"),
        ("calves", "calf"),
        ("benches", "bench"),
        ("puppies", "puppy"),
        ("glasses", "glass"),
        ("glass", "glass"),
        ("scissors", "scissors"),
        ("tvs", "tv"),
        ("suvs", "suv"),
        ("sheep", "sheep"),
        ("bus", "bus"),
        ("moped", "moped"),  # not a form of `to mope`
        ("bed", "bed"),
        ("bare", "bare"),  # not a form of `to bear`
        ("men", "men"),  # WordNet has an entry `men`, which is as short as `man`
        ("vases", "vas"),  # WordNet takes the shortest lemma: a vas is a duct of the body
        ("smartphones", "smartphones"),  # WordNet 3.0 has no smartphone
        ("cars", "car"),
        ("cares", "cares"),  # no car
    ],
)
def test_nouns_match_wordnet(word: str, base: str) -> None:
    assert lemma(word, "the", "", synonyms.load().vocabulary) == base


@pytest.mark.parametrize(
    ("context", "base"),
    [
        ("a man [skiing] down", "ski"),
        ("he is [skiing] .", "ski"),
        ("the [skiing] event", "skiing"),
        ("fond of [skiing] .", "skiing"),
        ("a woman [seated] at", "seat"),
        ("is [seated] .", "seat"),
        ("a [seated] man", "seated"),
        ("outdoor [seating] area", "seating"),
        ("several [potted] plants", "potted"),
        ("row of [parking] meters", "parking"),
        ("being [cared] for", "cared"),  # no car
        ("a cat [sandwiched] between", "sandwich"),
        ("a rope [tied] to", "tie"),
        ("is [tying] his", "tie"),
        ("was [born] in", "bear"),
        ("a dog [groomed] by", "groom"),
        ("is [batting] the", "bat"),
        ("a car [ferried] across", "ferry"),
        ("is [planing] it", "planing"),  # WordNet: to plan
        ("a [king] in", "king"),
        ("the [red] car", "red"),
    ],
)
def test_verbs_are_recognised_by_context(context: str, base: str) -> None:
    before, _, rest = context.partition("[")
    word, _, after = rest.partition("]")
    found = lemma(word, before.split()[-1], after.split()[0], synonyms.load().vocabulary)
    assert found == base


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two hot dogs and a dog.", ["hot dog", "dog"]),
        ("A baby elephant near a baby.", ["elephant", "person"]),
        ("A passenger train on the train tracks.", ["train"]),
        ("A toilet with a seat.", ["toilet"]),
        ("A toilet seat.", ["toilet"]),
        ("A seat by the wall.", ["chair"]),
        ("Bow ties, and wine glasses on a dining table.", ["tie", "wine glass", "dining table"]),
        ("Teddy bears ride motorbikes past traffic lights.", ["teddy bear", "motorcycle", "traffic light"]),
        ("A man wearing glasses looks at the sofas.", ["person", "couch"]),
        ("Two men and a 'cat' with smartphones near vases.", ["person", "cat", "cell phone", "vase"]),
        ("Bare trees.", []),
        ("The sky is blue.", []),
    ],
)
def test_mentions(text: str, expected: list[str]) -> None:
    table = synonyms.load()
    assert table.mentions(table.words(text)) == expected


def test_own_table_has_the_80_categories() -> None:
    table = synonyms.load()
    assert len(table.categories) == 80
    assert {c.name for c in CATEGORIES} <= table.categories
    for kind in CATEGORIES:
        for name in (kind.name, kind.plural, *kind.synonyms):
            if name not in ("plant",):  # CHAIR does not count it, because every tree is a plant
                assert table.mentions(table.words(f"the {name}")) == [kind.name], name


OBJECTS = {"1": ["dog", "person"], "2": ["cat"], "3": ["car"]}
CAPTIONS = [
    {"image_id": 1, "caption": "A man with a dog, a dog and a frisbee."},
    {"image_id": "2", "caption": "A cat."},
    {"image_id": "COCO_val2014_000000000003.jpg", "caption": "Nothing here."},
]


def test_figures_by_hand(write) -> None:
    found = score_files(write("c.jsonl", CAPTIONS), write("o.json", json.dumps(OBJECTS)))
    assert found["chair_s"] == pytest.approx(100 / 3)
    assert found["chair_i"] == pytest.approx(100 / 5)
    assert found["recall"] == pytest.approx(300 / 4)
    assert found["precision"] == pytest.approx(300 / 4)
    assert found["f1"] == pytest.approx(600 / 8)
    assert found["len"] == pytest.approx((12 + 3 + 3) / 3)
    assert (found["without_objects"], found["n"], found["synonyms"], found["lemmatizer"]) == (1, 3, "own", "rules")


def test_captions_without_objects(write) -> None:
    found = score_files(write("c", [{"image_id": 1, "caption": ""}]), write("o", json.dumps(OBJECTS)))
    assert (found["chair_s"], found["recall"], found["len"], found["f1"]) == (0, 0, 0, 0)
    assert np.isnan(found["chair_i"])
    assert np.isnan(found["precision"])


def test_synonyms_from_a_file(write) -> None:
    table = write("s.txt", "dog, wolf\nperson, man\nfrisbee\ncat\ncar\n")
    captions = write("c", [{"image_id": 1, "caption": "Wolves and a puppy."}])
    found = score_files(captions, write("o", json.dumps(OBJECTS)), table)
    assert (found["recall"], found["chair_i"], found["synonyms"]) == (50, 0, "s.txt")


@pytest.mark.parametrize(
    ("captions", "objects", "message"),
    [
        ([{"image_id": 7, "caption": "x"}], OBJECTS, "no ground truth for the image 7"),
        ([{"image_id": "seven", "caption": "x"}], OBJECTS, "no ground truth for the image seven"),
        ([CAPTIONS[0], {"image_id": "000000000001.jpg", "caption": "x"}], OBJECTS, "the image 1 has two captions"),
        ([{"image_id": 1}], OBJECTS, "record 1 has no `caption`"),
        ([{"caption": "x"}], OBJECTS, "record 1 has no `image_id`"),
        ([{"image_id": 1, "caption": ["x"]}], OBJECTS, "the caption is not a string"),
        ("", OBJECTS, "c is empty"),
        ('{"image_id": 1, "caption": "A d', OBJECTS, "line 1.*cut off"),
        (CAPTIONS, {}, "has no images"),
        (CAPTIONS, [], "must be a JSON object"),
        (CAPTIONS, {"1": "dog"}, "must be a JSON object"),
        (CAPTIONS, {"1": ["unicorn"]}, "the category 'unicorn' of image 1"),
        (CAPTIONS, {"1": ["dog"], "000001.jpg": ["cat"]}, "two keys mean the same image"),
    ],
)
def test_bad_input(write, captions, objects, message: str) -> None:
    with pytest.raises(DataError, match=message):
        score_files(write("c", captions), write("o", json.dumps(objects)))


def test_bad_synonyms(write) -> None:
    captions, objects = write("c", CAPTIONS), write("o", json.dumps(OBJECTS))
    for content, message in (("", "is empty"), ('{"dog": 1}', "line 1 is not a list of synonyms")):
        with pytest.raises(DataError, match=message):
            score_files(captions, objects, write(f"s{len(content)}", content))
    with pytest.raises(DataError, match=r"gone.txt is missing; it comes from .*LisaAnne/Hallucination"):
        score_files(captions, objects, Path("gone.txt"))


def test_image_ids() -> None:
    names = (
        42,
        "42",
        " 42",
        "000000000042.jpg",
        "COCO_val2014_000000000042.jpg",
        "val/COCO_train2014_000000000042.png",
    )
    assert {image_key(name) for name in names} == {"42"}
    assert image_key("scene_a") == "scene_a"
    assert image_key("a/b.jpg") == "a/b.jpg"


def test_incomplete_sentences_can_be_dropped(write) -> None:
    assert complete_sentences("A dog. A cat and a") == "A dog."
    assert complete_sentences('He said "yes." And 3.5') == 'He said "yes."'
    assert complete_sentences("no end") == "no end"
    captions = write("c", [{"image_id": 1, "caption": "A dog. A ca and a cat"}])
    objects = write("o", json.dumps(OBJECTS))
    assert score_files(captions, objects)["chair_s"] == 100
    assert score_files(captions, objects, complete=True)["chair_s"] == 0


def test_task_from_objects(write, tmp_path: Path) -> None:
    write("chair/objects.json", json.dumps(OBJECTS))
    task = create("chair", tmp_path, count=2, seed=3)
    assert len(task.samples()) == 2
    assert task.samples() == create("chair", tmp_path, count=2, seed=3).samples()
    write("chair/image_ids.json", "[3, 1]")
    task = create("chair", tmp_path)
    assert [s.id for s in task.samples()] == ["3", "1"]
    assert task.samples()[1].truth == {"objects": ["dog", "person"]}
    assert task.samples()[1].prompt == "Please describe this image in detail."
    parses = {s.id: task.parse(s, "A car.") for s in task.samples()}
    found = figures(task, unit_counts(task, task.samples(), parses).values())
    assert (found["chair_s"], found["chair_i"]) == (50, 50)
    for wrong in ("{}", "[]", '"31"', "[[3], [1]]"):
        write("chair/image_ids.json", wrong)
        with pytest.raises(DataError, match=r"list of image ids|image_ids.json: id 1"):
            create("chair", tmp_path).samples()
    write("chair/image_ids.json", "[3, 9]")
    with pytest.raises(DataError, match="no ground truth for the image 9"):
        create("chair", tmp_path).samples()


def test_ground_truth_from_coco_annotations(write, tmp_path: Path) -> None:
    """Ground truth combines instances and reference captions."""
    instances: dict[str, list[Any]] = {
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
        "annotations": [{"image_id": 5, "category_id": 1}, {"image_id": 5, "category_id": 1}],
    }
    captions = {
        "images": [{"id": 5}, {"id": 6}],
        "annotations": [{"image_id": 5, "caption": "A man on a sofa."}, {"image_id": 5, "caption": "Dogs."}],
    }
    write("annotations/instances_val2014.json", json.dumps(instances))
    write("annotations/captions_val2014.json", json.dumps(captions))
    task = create("chair", tmp_path)
    assert {s.id: s.truth["objects"] for s in task.samples()} == {"5": ["couch", "dog", "person"], "6": []}
    instances["annotations"].append({"image_id": 5, "category_id": 3})
    write("annotations/instances_val2014.json", json.dumps(instances))
    with pytest.raises(DataError, match="no category has the id 3"):
        create("chair", tmp_path).samples()
    write("annotations/instances_val2014.json", json.dumps(instances | {"annotations": [{"image_id": 5}]}))
    with pytest.raises(DataError, match=r"instances_val2014.json, annotations 1 has no `category_id`"):
        create("chair", tmp_path).samples()
    with pytest.raises(DataError, match=r"objects.json is missing; it can also be derived from the COCO 2014"):
        create("chair", write("empty/x", "").parent).samples()


GOLDEN = {"chair_s": 44.8, "chair_i": 12.7, "recall": 80.0, "len": 96.9}


def test_reference_figures(official) -> None:
    folder = official("chair")
    found = score_files(folder / "llava-1.5_greedy.jsonl", folder / "coco2014_objects.json", folder / "synonyms.txt")
    assert {name: round(found[name], 1) for name in GOLDEN} == GOLDEN
    assert found["n"] == 500


def test_rescoring_needs_the_synonyms_of_the_run(write, tmp_path: Path) -> None:
    """Without the data folder, the default table would give different figures."""
    write("chair/objects.json", json.dumps(OBJECTS))
    table = write("chair/synonyms.txt", "dog, wolf\nperson, man\ncat\ncar\n")
    task = create("chair", tmp_path)
    assert task.note([]) == "lemmatizer rules, synonyms synonyms.txt"
    options = dict(options_of(task))
    assert options["lemmatizer"] == "rules"
    table.unlink()
    with pytest.raises(DataError, match=r"synonyms.txt is missing"):
        restore("chair", options).note([])
    assert create("chair", tmp_path).note([]) == "lemmatizer rules, synonyms own"


def test_double_words_are_the_official_ones(official) -> None:
    folder = official("chair")
    assert double_words() == json.loads((folder / "double_word_dict.json").read_text())
    assert synonyms.load(folder / "synonyms.txt").doubles == double_words()
    assert synonyms.load(folder / "synonyms.txt").categories == synonyms.load().categories
