"""Detection of benchmarks in a data folder."""

import json
from pathlib import Path

import pytest

from heal.bench.tasks.data_folder import survey
from heal.errors import DataError


def pope(number: int, typo: bool = False) -> list[dict]:
    where = "imange" if typo else "image"
    return [
        {"question_id": i, "image": f"{i % 7}.jpg", "text": f"Is there a dog in the {where}?", "label": "yes"}
        for i in range(number)
    ]


def test_everything_is_found(write, tmp_path: Path) -> None:
    write("pope/coco_pope_random.json", pope(3000))
    write("pope/old/coco_pope_random.json", pope(2910, typo=True))
    write("images/0.jpg", "")
    write("chair/objects.json", json.dumps({"1": ["dog"]}))
    write("mme/count.txt", "1.jpg\tq\tYes\n1.jpg\tp\tNo\n")
    write("results/count.txt", "1.jpg\tq\tYes\tYes\n1.jpg\tp\tNo\tYes\n")
    write(
        "blink_twice/blink_twice.jsonl",
        [{"group": 1, "image": "1.jpg", "twin": False, "question": "q", "answer": "no"}],
    )
    found = {(f.task, f.place): f for f in survey(tmp_path)}
    assert set(found) == {
        ("pope", "pope"),
        ("pope", "pope/old"),
        ("chair", "chair"),
        ("mme", "mme"),
        ("mme", "results"),
        ("blink-twice", "blink_twice"),
    }
    assert not any(f.problem for f in found.values())
    current = found["pope", "pope"]
    assert (current.what, current.version, current.images, current.of_images) == (
        "coco: random 3000",
        "current (3000)",
        1,
        7,
    )
    assert found["pope", "pope/old"].version == "old (2910)"
    assert found["chair", "chair"].version == "objects file, own synonyms"
    assert found["mme", "mme"].version == "2 of 2374 questions"
    assert "heal score mme" in found["mme", "results"].version


def test_broken_data_is_a_finding(write, tmp_path: Path) -> None:
    write("coco_pope_random.json", pope(2910, typo=True))
    write("coco_pope_popular.json", pope(3000))
    write("response_template.json", '[{"question_type"')
    write("questions.jsonl", "")
    write("context.jsonl", "")
    found = {f.task: f.problem for f in survey(tmp_path)}
    assert "two versions of POPE are mixed" in found["pope"]
    assert "is not JSON" in found["mmhal"]
    assert "is empty" in found["llava-bench"]


def test_nothing(tmp_path: Path) -> None:
    assert survey(tmp_path) == []
    with pytest.raises(DataError, match="is not a folder"):
        survey(tmp_path / "gone")


def test_official(official) -> None:
    found = [f for name in ("mmhal", "llava_bench", "pope/old-2910", "mme") for f in survey(official(name))]
    assert [f.version for f in found] == [
        "complete (96 questions)",
        "complete (60 questions)",
        "old (2910)",
        "240 of 2374 questions",
    ]
    assert not any(f.problem for f in found)
