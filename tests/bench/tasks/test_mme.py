"""MME: all branches of the parser, pairs, groups, both data layouts, and results of other programs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heal.bench import create
from heal.bench.tasks.base import figures, unit_counts
from heal.bench.tasks.mme import COGNITION, HALLUCINATION, PERCEPTION, SUBTASKS, official, pair_score, score_files
from heal.errors import DataError, ImageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"),
        ("Yes", "yes"),
        ("NO", "no"),
        ("Yes, it is", "yes"),
        ("No.", "no"),
        (" yes", "yes"),
        ("  yes", None),  # the fourth character is just the e
        ("nope", "no"),
        ("Not", "no"),
        ("It is no", None),
        ("I know", None),
        ("a no", "no"),
        ("", None),
        ("eyes", "yes"),
    ],
)
def test_official_parser(text: str, expected: str | None) -> None:
    assert official(text) == expected


def results(*rows: tuple[str, str, str]) -> str:
    return "".join(f"{image}\tIs it {truth}? ({image})\t{truth}\t{said}\n" for image, truth, said in rows)


def test_figures_by_hand(write, tmp_path: Path) -> None:
    write("existence.txt", results(("1", "Yes", "Yes"), ("1", "No", "No"), ("2", "Yes", "yes."), ("2", "No", "Yes")))
    write("count.txt", results(("1", "Yes", "well"), ("1", "No", "no")))
    found = score_files(tmp_path)
    assert (found["existence/accuracy"], found["existence/accuracy_plus"], found["existence/score"]) == (75, 50, 125)
    assert (found["count/accuracy"], found["count/accuracy_plus"], found["count/score"]) == (50, 0, 50)
    assert (found["total"], found["unparsable"], found["n"]) == (175, 1, 6)
    assert found["subtasks"] == ["existence", "count"]
    assert not {"hallucination", "perception", "cognition"} & set(found)


def test_groups(write, tmp_path: Path) -> None:
    for name in SUBTASKS:
        write(f"{name}.txt", results(("1", "Yes", "Yes"), ("1", "No", "No" if name in HALLUCINATION else "Yes")))
    found = score_files(tmp_path)
    assert len(SUBTASKS) == 14
    assert found["hallucination"] == 800
    assert found["perception"] == 800 + 50 * 6
    assert found["cognition"] == 50 * 4
    assert found["total"] == found["perception"] + found["cognition"]
    assert (len(PERCEPTION) * 200, len(COGNITION) * 200) == (2000, 800)


def test_strict_reads_words(write, tmp_path: Path) -> None:
    write("count.txt", results(("1", "Yes", "I would say yes"), ("1", "No", "I know: yes and no")))
    assert score_files(tmp_path)["unparsable"] == 2
    found = score_files(tmp_path, "strict")
    assert (found["count/accuracy"], found["unparsable"]) == (50, 1)


def test_rows_of_an_image_need_not_be_neighbours(write, tmp_path: Path) -> None:
    write("count.txt", results(("1", "Yes", "Yes"), ("2", "Yes", "No"), ("1", "No", "No"), ("2", "No", "No")))
    assert score_files(tmp_path)["count/accuracy_plus"] == 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "count.txt is empty"),
        ("1\tq\tYes\n", "line 1 has 3 columns instead of 4"),
        (results(("1", "Yes", "Yes")), "the image 1 has 1 questions"),
        (results(("1", "Yes", "Yes"), ("1", "Maybe", "Yes")), "the truth is 'Maybe'"),
        (results(("1", "Yes", "Yes"), ("1", "Yes", "No")), "occurs twice"),
    ],
)
def test_bad_results(write, tmp_path: Path, content: str, message: str) -> None:
    write("count.txt", content)
    with pytest.raises(DataError, match=message):
        score_files(tmp_path)


def test_no_results(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has none of existence.txt, count.txt"):
        score_files(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        score_files(tmp_path / "gone")


def questions(image: str) -> str:
    return f"{image}\tIs it? Please answer yes or no.\tYes\n{image}\tIs it not? Please answer yes or no.\tNo\n"


def test_task_from_texts_and_from_folders(write, tmp_path: Path) -> None:
    coco = "000000000001.jpg"
    write("count.txt", questions(coco) + questions("b.jpg"))
    for name, text in (("position", "position/a.txt"), ("color", "color/questions_answers_YN/a.txt")):
        write(text, questions("").replace("\tIs", "Is"))
        place = tmp_path / name / ("images" if name == "color" else "")
        place.mkdir(exist_ok=True)
        Image.new("RGB", (2, 3)).save(place / "a.png")
    task = create("mme", tmp_path, subtasks="count+position+color")
    assert len(task.samples()) == 8
    assert [s.id for s in task.samples()[:2]] == ["count/0/0", "count/0/1"]
    assert {s.unit for s in task.samples()} == {coco, "count/b.jpg", "position/a.png", "color/a.png"}
    assert [s.image().size for s in task.samples() if s.unit.endswith("png")] == [(2, 3)] * 4
    assert task.samples()[0].prompt == "Is it? Please answer yes or no."
    parses = {s.id: task.parse(s, s.truth["label"] if s.unit != "count/b.jpg" else "yes") for s in task.samples()}
    found = figures(task, unit_counts(task, task.samples(), parses).values())
    assert (found["count/score"], found["position/score"], found["total"]) == (125, 200, 525)
    del parses["position/0/1"]
    found = figures(task, unit_counts(task, task.samples(), parses).values())
    assert found["position/accuracy"] == 100
    assert np.isnan(found["position/accuracy_plus"])  # it is unknown whether both are correct


def test_missing_data(write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"existence.txt are missing; they come from .*BradyFU"):
        create("mme", tmp_path).samples()
    write("count/a.txt", "Is it?\tYes\nIs it not?\tNo\n")
    sample = create("mme", tmp_path, subtasks="count").samples()[0]
    with pytest.raises(ImageError, match=r"no image .*a.jpg"):
        sample.image()
    task: Any = create("mme", tmp_path, subtasks="all")
    assert task.chosen == SUBTASKS


def test_sums_work_on_arrays() -> None:
    totals = {"count/questions": 4, "count/right": 2, "count/images": 2, "count/both": 1, "count/unparsable": 0}
    one = pair_score(["count"], totals)
    many = pair_score(["count"], {key: np.array([value, 2.0 * value]) for key, value in totals.items()})
    assert {key: float(np.asarray(v)[0]) for key, v in many.items()} == {key: float(v) for key, v in one.items()}


def test_official_subset(official) -> None:
    task = create("mme", official("mme"))
    assert len(task.samples()) == 240
    assert all(sum(s.truth["subtask"] == name for s in task.samples()) == 60 for name in HALLUCINATION)
    assert {s.truth["subtask"] for s in task.samples()[:16]} == set(HALLUCINATION)
    parses = {s.id: task.parse(s, s.truth["label"]) for s in task.samples()}
    assert figures(task, unit_counts(task, task.samples(), parses).values())["hallucination"] == 800
