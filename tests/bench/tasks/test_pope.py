"""POPE: all branches of both parsers, figures, versions, and mismatched files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heal.bench import create
from heal.bench.tasks.base import figures, unit_counts
from heal.bench.tasks.pope import official as official_parser
from heal.bench.tasks.pope import one_version, score_files, version
from heal.bench.tasks.yes_no import strict
from heal.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("text", "official", "careful"),
    [
        ("Yes", "yes", "yes"),
        ("No", "no", "no"),
        ("no, there is none", "no", "no"),
        ("Yes, there is a dog.", "yes", "yes"),
        ("There is not a dog", "no", "no"),
        ("There is no dog. Yes", "no", "no"),
        ("I see a cat. No dog", "yes", None),  # only the first sentence is read
        ("", "yes", None),
        ("   ", "yes", None),
        ("maybe", "yes", None),
        ("A dog", "yes", None),
        ("NO", "yes", "no"),  # the official parser only knows No, no and not
        ("No!", "yes", "no"),
        ("No\n", "yes", "no"),
        ("no\nyes", "yes", None),
        ("(no)", "yes", "no"),
        ("Not really", "yes", "no"),
        ("There isn't a dog", "yes", "no"),
        ("There isn’t a dog", "yes", "no"),
        ("Yes and no", "no", None),
        ("yes or no", "no", None),
        ("Nothing", "yes", None),
        ("I know", "yes", None),
        ("Yes, a dog that is not asleep", "no", "yes"),
        ("not yes", "no", None),
        (",no", "no", "no"),  # commas are removed before words are split
        (".no", "yes", None),
    ],
)
def test_parsers(text: str, official: str, careful: str | None) -> None:
    assert official_parser(text) == official
    assert strict(text) == careful


def questions(labels: str, typo: bool = False) -> list[dict]:
    where = "imange" if typo else "image"
    return [
        {
            "question_id": i,
            "image": f"COCO_val2014_{(i - 1) // 2:012d}.jpg",
            "text": f"Is there a dog in the {where}?",
            "label": {"y": "yes", "n": "no"}[label],
        }
        for i, label in enumerate(labels, 1)
    ]


def answers(*texts: str) -> list[dict]:
    return [{"question_id": i, "text": text} for i, text in enumerate(texts, 1)]


def test_figures_by_hand(write) -> None:
    asked = write("q.json", questions("yyynnn"))
    said = write("a.jsonl", answers("Yes", "No", "maybe", "Yes", "no", "NO"))
    found = score_files(said, asked)
    # official: yes no yes | yes no yes: tp 2, fn 1, fp 2, tn 1
    assert found["accuracy"] == pytest.approx(50)
    assert found["precision"] == pytest.approx(50)
    assert found["recall"] == pytest.approx(200 / 3)
    assert found["f1"] == pytest.approx(400 / 7)
    assert found["yes_ratio"] == pytest.approx(400 / 6)
    assert (found["unparsable"], found["n"], found["parser"], found["version"]) == (1, 6, "official", "other")
    # strict: yes no – | yes no no: tp 1, fn 2, fp 1, tn 2; the unclear answer is wrong and not a yes
    found = score_files(said, asked, "strict")
    assert [found[k] for k in ("accuracy", "precision")] == [50, 50]
    assert found["recall"] == found["yes_ratio"] == pytest.approx(100 / 3)
    assert found["unparsable"] == 1


def test_order_of_lines_and_names_of_fields_do_not_matter(write) -> None:
    asked = write("q.json", json.dumps(questions("yn")))
    said = [
        {"question_id": "2", "answer": "no", "text": "Is there a dog in the image?"},
        {
            "question_id": "1",
            "answer": "yes",
            "prompt": "<image>\nIs there a dog in the image?\nOne word.",
            "image": 0,
        },
    ]
    found = score_files(write("a.json", json.dumps(said)), asked)
    assert (found["accuracy"], found["unparsable"]) == (100, 0)


def test_answers_that_are_all_no(write) -> None:
    found = score_files(write("a", answers("no", "no")), write("q", questions("yn")))
    assert np.isnan(found["precision"])
    assert (found["recall"], found["f1"], found["yes_ratio"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (answers("yes"), "1 answers are missing and 0 have no question .no answer to question 2"),
        (answers("yes", "no", "no"), "an answer to 3, which was not asked"),
        (answers("yes", "no")[:1] * 2, "the question_id 1 occurs twice"),
        ([{"text": "yes"}], "record 1 has no `question_id`"),
        ([{"question_id": 1}, {"question_id": 2}], "no answer in `text` or `answer`"),
        ([{"question_id": 1, "answer": None}, {"question_id": 2}], "no answer in `text` or `answer`"),
        ("", "a.jsonl is empty"),
        ("[]", "has no records"),
        ('{"question_id": 1, "text": "yes"}\n{"question_id": 2, "te', "line 2.*probably cut off"),
        ('{"question_id": 1,\n{"question_id": 2, "text": "no"}\n', r"line 1 is not JSON: [^I]*$"),
        ("[1, 2]", "record 1 is not an object"),
        (b"\xff\xfe", "not a text file"),
        (
            [{"question_id": i, "text": "no", "prompt": "Is there a dog in the imange?"} for i in (1, 2)],
            "another version of POPE",
        ),
        (
            [{"question_id": i, "text": "no", "image": "COCO_val2014_000000000009.jpg"} for i in (1, 2)],
            "another version of POPE",
        ),
    ],
)
def test_answers_to_other_questions(write, tmp_path: Path, said, message: str) -> None:
    asked = write("q.json", questions("yn"))
    path = tmp_path / "a.jsonl"
    path.write_bytes(said) if isinstance(said, bytes) else write("a.jsonl", said)
    with pytest.raises(DataError, match=message):
        score_files(path, asked)


def test_wrong_questions(write) -> None:
    with pytest.raises(
        DataError, match=r"nowhere.json is missing; it comes from the GitHub repository AoiDragon/POPE"
    ):
        score_files(write("a", answers("yes")), Path("nowhere.json"))
    with pytest.raises(DataError, match="label 'maybe'"):
        score_files(write("a", answers("yes")), write("q", [{"question_id": 1, "label": "maybe"}]))
    with pytest.raises(ConfigError, match="parser cannot be 'kind'"):
        score_files(write("a", answers("yes")), write("q", questions("y")), "kind")


def test_versions() -> None:
    current, old, small = questions("yn" * 1500), questions("yn" * 1455), questions("yn")
    assert version(current) == "current (3000)"
    assert version(old) == "old (2910)"
    assert version(questions("yn" * 1500, typo=True)) == "old wording (imange)"
    assert version(small) == "other"
    assert one_version({"a": current, "b": current}) == "current (3000)"
    assert one_version({"a": old, "b": questions("yn" * 1500, typo=True)}) == "old (2910)"
    assert one_version({"a": current, "b": small}) == "other"
    with pytest.raises(DataError, match="two versions of POPE are mixed: b is the old"):
        one_version({"a": current, "b": old})
    with pytest.raises(DataError, match=r"mixed: b is the old wording"):
        one_version({"a": current, "b": questions("yn" * 1500, typo=True)})


def test_task_from_a_folder(write, tmp_path: Path) -> None:
    for split in ("random", "popular", "adversarial"):
        write(f"pope/coco_pope_{split}.json", questions("ynyn"))
    task = create("pope", tmp_path, suffix="\nOne word.")
    assert len(task.samples()) == 12
    first = task.samples()[0]
    assert (first.id, first.unit, first.prompt) == (
        "random/1",
        "COCO_val2014_000000000000.jpg",
        "Is there a dog in the image?\nOne word.",
    )
    assert [s.unit for s in task.samples()[:6]] == [first.unit] * 6
    parses = {s.id: task.parse(s, "yes" if s.id.startswith("random") else s.truth["label"]) for s in task.samples()}
    found = figures(task, unit_counts(task, task.samples(), parses).values())
    assert (found["random/accuracy"], found["popular/accuracy"]) == (50, 100)
    assert found["accuracy"] == pytest.approx(250 / 3)
    assert found["f1"] == pytest.approx((200 / 3 + 200) / 3)
    only = create("pope", tmp_path, splits="popular")
    assert set(figures(only, [])) == {"accuracy", "precision", "recall", "f1", "yes_ratio", "unparsable"}


@pytest.mark.parametrize("name", ["aokvqa_pope_seem_random.json", "POPE/aokvqa/aokvqa_pope_random.json"])
def test_names_and_folders_of_other_repositories(write, tmp_path: Path, name: str) -> None:
    write(name, json.dumps(questions("yn")))
    assert len(create("pope", tmp_path, variant="aokvqa", splits="random").samples()) == 2


def test_folder_with_missing_files_or_mixed_versions(write, tmp_path: Path) -> None:
    write("coco_pope_random.json", questions("yn" * 1455, typo=True))
    write("coco_pope_popular.json", questions("yn" * 1500))
    with pytest.raises(DataError, match="two versions of POPE are mixed"):
        create("pope", tmp_path, splits="random+popular").samples()
    with pytest.raises(DataError, match=r"coco_pope_adversarial.json is missing; it comes from .*AoiDragon/POPE"):
        create("pope", tmp_path).samples()
    with pytest.raises(DataError, match=r"gqa_pope_seem_random.json is missing"):
        create("pope", tmp_path, variant="gqa").samples()
    write("coco_pope_adversarial.json", questions("yn") + questions("yn"))
    with pytest.raises(DataError, match="the id adversarial/1 occurs twice"):
        create("pope", tmp_path, splits="adversarial").samples()


def test_official_files(official) -> None:
    task: Any = create("pope", official("pope"))
    assert task.version == "current (3000)"
    assert len(task.samples()) == 9000
    assert len({s.unit for s in task.samples()}) == 500
    other = create("pope", official("pope"), variant="aokvqa", splits="adversarial")
    assert sum(s.truth["label"] == "yes" for s in other.samples()) == 1500
    old: Any = create("pope", official("pope/old-2910"), splits="random")
    assert old.version == "old (2910)"


def test_official_image_is_found(official) -> None:
    task: Any = create("pope", official("images").parent, splits="random")
    images = {s.unit: s for s in task.samples()}.values()
    there = next(s for s in images if s.image_source.path.is_file())
    assert there.image().mode == "RGB"
