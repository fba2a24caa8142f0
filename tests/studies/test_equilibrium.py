import json

import numpy as np
import pytest

from heal import VLM
from heal.bench.tasks.labelled_files import labelled_files
from heal.errors import DataError
from heal.studies.equilibrium import coco_finder, measure_equilibrium
from heal.world.mentions import Finder, Mention


def test_image_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "p.jsonl").write_text(
        '{"image": "a.png", "objects": ["dog", "cup"]}\n\n{"image": "b/c.png", "objects": []}\n'
    )
    first, second = labelled_files(tmp_path / "p.jsonl")
    assert (first.image, first.objects) == (tmp_path / "a.png", frozenset({"dog", "cup"}))
    assert (second.image, second.objects) == (tmp_path / "b" / "c.png", frozenset())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"image": "a.png"}\n', "line 1"),
        ('{"image": "a.png", "objects": ["x"]}\n{"image": "b.pn', "line 2"),
        ('{"image": "a.png", "objects": "dog"}\n', "list of names"),
        ('["a.png"]\n', "line 1"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        labelled_files(tmp_path / "p.jsonl")


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl"):
        labelled_files(tmp_path / "none.jsonl")


def test_coco_words_and_their_plurals():
    found = coco_finder()("Two puppies? No: two dogs, a hot dog and some people near a motorbike.")
    assert [m.category for m in found] == ["dog", "dog", "hot dog", "person", "motorcycle"]


class Everywhere:
    """Finds the same object at the first letter of every answer."""

    def __call__(self, text):
        at = next(i for i, c in enumerate(text) if c.isalpha())
        return [Mention("dog", at, at + 1)]


class Picture:
    def __init__(self, seed, objects):
        self.image = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        self.objects = frozenset(objects)


def test_only_correct_names_count():
    vlm = VLM.random()
    there, gone = Picture(0, ["dog"]), Picture(1, ["cat"])
    both = measure_equilibrium(vlm, [there, gone], batch=2, max_new_tokens=6, find=Everywhere())
    alone = measure_equilibrium(vlm, [there], batch=1, max_new_tokens=6, find=Everywhere(), data="one image")
    assert (both.source["correct_names"], both.source["names"]) == (1, 2)
    assert both.mean == pytest.approx(alone.mean, abs=1e-4)
    np.testing.assert_array_equal(both.counts, alone.counts)
    assert alone.source["data"] == "one image"
    assert alone.source["options"]["calibrate"] is False
    assert json.dumps(alone.source)


def test_no_correct_names_are_an_error():
    with pytest.raises(DataError, match="none of the objects"):
        measure_equilibrium(VLM.random(), [Picture(0, ["cat"])], max_new_tokens=4, find=Finder({"zebra": "zebra"}))
