"""The data of a run view, from folders that are created without a model."""

import json
from pathlib import Path

import pytest

from heal.bench.run.folder import RECORDS, Folder
from heal.bench.score.summary import summarise
from heal.errors import RunError
from heal.view import page, run_data
from heal.view.run import _Task
from heal.view.thumbnails import Thumbnails
from tests.bench.folders import METHODS, TASK, finished


def says_yes(label: str, method: str) -> str:
    return "Yes." if method == "heal" else "Yes" if label == "yes" else "No"


def test_results_are_those_of_the_summary(tmp_path: Path) -> None:
    path = finished(tmp_path / "run", says_yes)
    data = run_data(path)
    assert (data["kind"], data["title"], list(data["methods"])) == ("run", "run", list(METHODS))
    (task,) = data["tasks"]
    assert (task["name"], task["headline"], task["higher_is_better"]) == (TASK, "f1", True)
    for row, expected in zip(task["rows"], summarise(Folder(path)).rows, strict=True):
        assert (row["method"], row["answered"], row["failed"]) == (expected.method, expected.answered, 0)
        interval = expected.figures["accuracy"]
        assert row["figures"]["accuracy"] == pytest.approx([interval.value, interval.low, interval.high], rel=1e-4)
    assert task["rows"][0]["differences"] is None
    assert task["rows"][1]["differences"]["yes_ratio"][0] > 0
    assert task["rows"][0]["time_ratio"] is None  # one token is too short to time


def test_samples_have_every_text_once(tmp_path: Path) -> None:
    (task,) = run_data(finished(tmp_path / "run", says_yes))["tasks"]
    assert len(task["samples"]) == task["total"]
    for sample in task["samples"]:
        absent = "label: no" in sample["truth"]
        assert [text["text"] for text in sample["texts"]] == (["No", "Yes."] if absent else ["Yes", "Yes."])
        assert [text["wrong"] for text in sample["texts"]] == [False, absent]
        assert [text["correct"] for text in sample["texts"]] == [True, not absent]
        assert [answer["text"] for answer in sample["answers"]] == [0, 1]
        assert ("answer no" in sample["tags"]) == absent


def test_pictures_are_drawn_again_and_shared(tmp_path: Path) -> None:
    (task,) = run_data(finished(tmp_path / "run"))["tasks"]
    assert {sample["picture"] for sample in task["samples"]} == {0}
    assert [source.partition(",")[0] for source in task["pictures"]] == ["data:image/jpeg;base64"]


def test_failures_are_listed(tmp_path: Path) -> None:
    data = run_data(finished(tmp_path / "run", lambda label, method: None if method == "heal" else label))
    (task,) = data["tasks"]
    assert data["failed"] == len(data["failures"]) == task["total"]
    assert data["failures"][0]["error"] == "ImageError: there is no image 7.jpg"
    assert {sample["answers"][1]["text"] for sample in task["samples"]} == {None}


def test_only_the_first_samples_are_included(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    (whole,), (task,) = run_data(path)["tasks"], run_data(path, samples=2)["tasks"]
    assert (len(task["samples"]), task["total"]) == (2, whole["total"])
    assert task["rows"] == whole["rows"]


def test_an_unfinished_run_shows_what_is_there(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    lines = (path / RECORDS).read_text().splitlines(keepends=True)
    (path / RECORDS).write_text("".join(lines[:3]))
    (task,) = run_data(path)["tasks"]
    assert task["rows"][1]["missing"] == task["total"]
    assert task["samples"][0]["answers"][1] is None


def test_an_empty_run_is_an_error(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    (path / RECORDS).write_text("")
    with pytest.raises(RunError, match="no answers yet: finish the run with --resume"):
        run_data(path)


def test_another_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run: it has no run\.json"):
        run_data(tmp_path)


def test_captions_are_marked_like_they_are_scored(tmp_path: Path) -> None:
    from heal.bench import create
    from heal.bench.run.records import Key, Record
    from heal.world.mentions import mentions

    task = create("mini-chair", count=1)
    (sample,) = task.samples()
    present = sample.truth["objects"][0]
    absent = next(name for name in ("kite", "bear", "sink") if name not in sample.truth["objects"])
    text = f"There is a {present} and a {absent}."
    record = Record("t", "plain", sample.id, 0, text, 9, "stop")
    own = _Task("t", task, ["plain"], {Key("t", "plain", sample.id): record}, mentions, Thumbnails.of(task))
    found = own.sample(sample)
    (judged,) = found["texts"]
    assert [(text[m["start"] : m["stop"]], m["correct"]) for m in judged["marks"]] == [
        (present, True),
        (absent, False),
    ]
    assert judged["wrong"]
    assert found["objects"] == sample.truth["objects"]
    assert f"hallucinated: {absent}" in found["tags"]


def test_the_page_has_the_data(tmp_path: Path) -> None:
    data = run_data(finished(tmp_path / "run", says_yes), title="</script>", notes=["a note"])
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    text = page(data)
    assert text.count("</script>") == 2
    assert "a note" in text
