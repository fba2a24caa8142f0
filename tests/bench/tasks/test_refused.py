"""Inconsistent, malicious or malformed benchmark data is refused with a one-line error."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heal import VLM
from heal.bench import create
from heal.bench.run.plan import Settings, select_samples
from heal.bench.run.runner import run
from heal.bench.tasks.base import Sample, figures
from heal.bench.tasks.data_folder import survey
from heal.bench.tasks.image_presence import presence, samples_with_images
from heal.bench.tasks.pope import score_files
from heal.cli import app as application
from heal.errors import DataError, HealWarning, RunError
from tests.bench import official
from tests.bench.questions import Questions
from tests.bench.questions import pictures as drawn


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def first(name: str, **change: Any) -> str:
    """The first file of a benchmark with a changed first record; `...` drops a field."""
    content = next(iter(official.EVERY[name][2]().values()))
    records = json.loads(content) if content.startswith("[") else rows(content)
    records[0] = {key: value for key, value in (records[0] | change).items() if value is not ...}
    return json.dumps(records)


OUT = "relative paths inside the data folder"
CASES: list[tuple[str, str, str, str]] = [
    ("pope", "coco_pope_random.json", first("pope", question_id=None), "`question_id` must be a string or a whole"),
    ("pope", "coco_pope_random.json", first("pope", question_id=True), "`question_id` must be a string or a whole"),
    (
        "pope",
        "coco_pope_random.json",
        first("pope", question_id="x" * 5000),
        "has 5000 characters, which is too long",
    ),
    ("pope", "coco_pope_random.json", first("pope", question_id=2), "the id random/2 occurs twice"),
    ("pope", "coco_pope_random.json", first("pope", text=None), "`text` must be a string, not null"),
    ("pope", "coco_pope_random.json", first("pope", text=" "), "`text` is empty"),
    ("pope", "coco_pope_random.json", first("pope", text=...), "has no `text`"),
    ("pope", "coco_pope_random.json", first("pope", label=[1]), "it must be yes or no"),
    ("pope", "coco_pope_random.json", first("pope", image=5), "`image` must be the name of an image, not a number"),
    ("pope", "coco_pope_random.json", first("pope", image="x" * 300), "300 characters, which is too long"),
    ("pope", "coco_pope_random.json", first("pope", image="a\0b"), "is not the name of an image"),
    ("pope", "coco_pope_random.json", first("pope", image="../../etc/passwd"), OUT),
    ("pope", "coco_pope_random.json", first("pope", image="/etc/passwd"), OUT),
    ("pope", "coco_pope_random.json", first("pope", image="a\\..\\..\\b.jpg"), OUT),
    ("pope", "coco_pope_random.json", first("pope", image="C:\\b.jpg"), OUT),
    ("pope", "coco_pope_random.json", '{"question_id": 1, "question_id": 2}', "the key 'question_id' occurs twice"),
    ("pope", "coco_pope_random.json", '[{"question_id": NaN}]', "NaN is not a number that JSON has"),
    ("pope", "coco_pope_random.json", "[" * 50_000, "nested more than 64 levels"),
    ("pope", "coco_pope_random.json", '[{"question_id": ' + "1" * 5000 + "}]", "a number of 5000 digits"),
    ("pope", "coco_pope_random.json", first("pope", text="\ud83d"), "half a surrogate pair"),
    ("chair", "image_ids.json", '"12"', "must be a JSON list of image ids"),
    ("chair", "image_ids.json", "12", "must be a JSON list of image ids"),
    ("chair", "image_ids.json", "{}", "must be a JSON list of image ids"),
    ("chair", "image_ids.json", "[]", "must be a JSON list of image ids"),
    ("chair", "image_ids.json", "[1, [2]]", "id 2 must be a string or a whole number, not a list"),
    ("chair", "image_ids.json", "[1, true]", "id 2 must be a string or a whole number"),
    ("chair", "image_ids.json", "[1, 1]", "the id 1 occurs twice"),
    ("chair", "objects.json", '{"1": [1]}', "must be a JSON object"),
    ("chair", "objects.json", '{"1": ["dog"], "1": ["cat"]}', "the key '1' occurs twice"),
    ("chair", "objects.json", '{"": ["dog"]}', "an image id is empty"),
    ("mme", "count.txt", "/etc/passwd\tq\tYes\n/etc/passwd\tp\tNo\n", OUT),
    ("mme", "count.txt", "1.jpg\tq\tYes\n1.jpg\tq\tNo\n", "the question 'q' about 1.jpg occurs twice"),
    ("mmhal", "response_template.json", first("mmhal", image_content="Cup"), "`image_content` must be a list"),
    (
        "mmhal",
        "response_template.json",
        first("mmhal", image_content=[1]),
        "`image_content` must be a list of strings",
    ),
    ("mmhal", "response_template.json", first("mmhal", gt_answer=None), "`gt_answer` must be a string"),
    ("mmhal", "response_template.json", first("mmhal", image_id="../x"), OUT),
    ("mmhal", "response_template.json", first("mmhal", image_id="1a"), "the question 'What is it.' about 1a occurs"),
    ("llava-bench", "questions.jsonl", first("llava-bench", question_id=1), "the id 1 occurs twice"),
    ("llava-bench", "questions.jsonl", first("llava-bench", image="../001.jpg"), OUT),
    ("llava-bench", "context.jsonl", '{"image": "001.jpg", "caption": "a"}\n' * 2, "the image 001.jpg occurs twice"),
    ("llava-bench", "context.jsonl", '{"image": "001.jpg", "caption": {}}\n', "`caption` must be a string"),
    ("llava-bench", "answers_gpt4.jsonl", '{"question_id": 0, "text": "a"}\n' * 2, "the question_id 0 occurs twice"),
    ("blink-twice", "blink_twice.jsonl", official.blink()["blink_twice.jsonl"] * 2, "occurs twice .records 1 and 5"),
    ("blink-twice", "blink_twice.jsonl", first("blink-twice", answer="yes", question="Is it yes?"), "occurs twice"),
    ("blink-twice", "blink_twice.jsonl", first("blink-twice", group=2), "is in group 1.*before it was in group 2"),
    ("blink-twice", "blink_twice.jsonl", first("blink-twice", image="/x.jpg"), OUT),
    ("coco", "annotations/captions_val2014.json", "[]", "must be a JSON object"),
    ("coco", "annotations/captions_val2014.json", '{"images": {}}', "`images` must be a list"),
    ("coco", "annotations/captions_val2014.json", '{"images": [5]}', "images 1 is not an object"),
    ("coco", "annotations/captions_val2014.json", '{"images": [{"id": null}]}', "`id` must be a string or a whole"),
    ("coco", "annotations/captions_val2014.json", '{"images": [{"id": 5}], "annotations": []}', "list the image 6"),
    ("coco", "annotations/instances_val2014.json", '{"categories": [{"id": 1}]}', "has no `name`"),
    ("coco", "annotations/instances_val2014.json", '{"categories": [{"id": 1, "name": "elf"}]}', "'elf' is not in"),
    ("coco", "annotations/instances_val2014.json", '{"categories": [], "annotations": 3}', "must be a list"),
    (
        "coco",
        "annotations/instances_val2014.json",
        '{"categories": [], "annotations": [{"image_id": 5, "category_id": 9}]}',
        "no category has the id 9",
    ),
]


@pytest.mark.parametrize(("name", "file", "content", "message"), CASES)
def test_data_is_refused(tmp_path: Path, name: str, file: str, content: str, message: str) -> None:
    task, options, files = official.EVERY[name]
    official.put(tmp_path, files() | {file: content})
    with pytest.raises(DataError, match=message) as raised:
        create(task, tmp_path, **options).samples()
    assert len(str(raised.value)) < 600
    (finding,) = survey(tmp_path)  # `heal data check` reports the same
    assert finding.problem


@pytest.mark.parametrize("name", official.EVERY)
def test_valid_data(tmp_path: Path, name: str) -> None:
    task, options, files = official.EVERY[name]
    assert create(task, official.put(tmp_path, files()), **options).samples()
    (finding,) = survey(tmp_path)
    assert (finding.problem, finding.task, finding.images) == ("", task, 0)


def test_answers_of_other_programs(tmp_path: Path) -> None:
    asked = tmp_path / "q.json"
    asked.write_text(official.pope()["coco_pope_random.json"])
    good = [{"question_id": i, "text": "yes"} for i in range(1, 5)]
    for change, message in (
        ({"question_id": {}}, "`question_id` must be a string or a whole number"),
        ({"question_id": 2}, "the question_id 2 occurs twice"),
        ({"image": []}, "`image` must be a string or a whole number"),
        ({"image": "9" * 5000}, "is too long"),
    ):
        (tmp_path / "a.json").write_text(json.dumps([good[0] | change, *good[1:]]))
        with pytest.raises(DataError, match=message):
            score_files(tmp_path / "a.json", asked)


# ── questions with one label ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("label", ["yes", "no"])
def test_one_class_has_no_f1(tmp_path: Path, label: str) -> None:
    questions = rows(official.pope()["coco_pope_random.json"])
    (tmp_path / "q").write_text(official.jsonl([q | {"label": label} for q in questions]))
    (tmp_path / "a").write_text(official.jsonl([{"question_id": i, "text": "yes"} for i in range(1, 5)]))
    with pytest.warns(HealWarning, match=f"every question has the label {label}"):
        found = score_files(tmp_path / "a", tmp_path / "q")
    assert math.isnan(found["f1"])
    assert math.isnan(found["precision"])
    assert found["accuracy"] == (100 if label == "yes" else 0)
    assert found["n"] == 4


def test_limit_that_leaves_one_class_gives_a_warning() -> None:
    task = create("mini-pope", count=1)
    one = [s for s in task.samples() if s.truth["label"] == "yes"]
    assert [r.split(":")[0] for r in task.remarks(one)] == ["random", "popular", "adversarial"]
    assert task.remarks(task.samples()) == []
    few = [s for s in task.samples() if s.truth["splits"] == ["random"]]
    assert "popular: no question is asked" in task.remarks(few)[0]


def test_rates_of_nothing_are_nan(tmp_path: Path) -> None:
    for number, (task, options, files) in enumerate(official.EVERY.values()):
        found = figures(create(task, official.put(tmp_path / str(number), files()), **options), [])
        counts = {"unparsable", "unjudged", "rated", "without_objects"}
        assert all(math.isnan(value) for name, value in found.items() if name not in counts)


# ── missing images ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two images, one of them missing."""
    folder = official.put(tmp_path / "data", official.pope())
    official.pictures(folder, "COCO_val2014_000000000000.jpg", "COCO_val2014_000000000001.jpg")
    return folder


def test_missing_images_are_reported_before_the_run(data: Path) -> None:
    tasks = {"pope": create("pope", data, splits="random")}
    asked = select_samples(tasks, None)
    assert presence(asked["pope"]).total == 3
    with pytest.raises(
        DataError, match=r"pope: 1 of 3 images are missing: .*002\.jpg\. .*images=, or skip .*--skip-missi"
    ):
        samples_with_images(asked)
    assert [s.id for s in samples_with_images(asked, skip_missing=True)["pope"]] == [
        "random/1",
        "random/2",
        "random/3",
    ]
    for path in (data / "images").iterdir():
        path.unlink()
    for skip in (False, True):
        with pytest.raises(DataError, match=r"3 of 3 images are missing: .*, .*, [^…]*images=$"):
            samples_with_images(asked, skip)
    drawn = select_samples({"mini": create("mini-pope", count=1)}, 3)
    assert presence(drawn["mini"]).total == 0
    assert samples_with_images(drawn) == drawn


def heal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *args: str) -> tuple[int, str, str]:
    import warnings

    monkeypatch.setattr(sys, "argv", ["heal", *args])
    code: Any = 0
    with warnings.catch_warnings():
        try:
            application.main()
        except SystemExit as stop:
            code = stop.code
    return code or 0, *capsys.readouterr()


def test_eval_without_images_and_with_some(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    args = ["eval", "pope:splits=random", "--data", str(data), "--method", "plain", "--max-new-tokens", "2"]
    out = tmp_path / "run"
    code, stdout, stderr = heal(monkeypatch, capsys, *args, "--model", "nowhere/none", "--out", str(out))
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)  # the model was not loaded
    assert "1 of 3 images are missing" in stderr
    assert not out.exists()
    args += ["--model", "random", "--out", str(out), "--skip-missing"]
    code, stdout, stderr = heal(monkeypatch, capsys, *args)
    assert code == 0
    assert "heal: warning: pope:splits=random: 1 of 3 images are missing" in stderr
    assert "3 of 4" in stdout
    assert "! plain: 1 samples were skipped because their images are missing" in stdout
    code, stdout, _ = heal(monkeypatch, capsys, "score", str(out))
    assert (code, "3 of 4" in stdout) == (0, True)
    official.pictures(data, "COCO_val2014_000000000002.jpg")
    code, _, stderr = heal(monkeypatch, capsys, *args, "--resume")
    assert (code, "samples was 3, now 4" in stderr) == (2, True)


def test_first_failure_is_shown_immediately_and_no_answers_are_an_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    official.pictures(data, *(f"COCO_val2014_{i:012d}.jpg" for i in range(3)))
    (data / "images" / "COCO_val2014_000000000000.jpg").write_bytes(b"nothing")
    args = ["eval", "pope:splits=random", "--data", str(data), "--method", "plain", "--max-new-tokens", "2"]
    args += ["--model", "random", "--out"]
    code, stdout, stderr = heal(monkeypatch, capsys, *args, str(tmp_path / "some"))
    assert code == 4
    assert "heal: warning: pope:splits=random, sample random/1 with plain failed: ImageError: " in stderr
    assert "3 of 4" in stdout
    for path in (data / "images").iterdir():
        path.write_bytes(b"nothing")
    code, stdout, stderr = heal(monkeypatch, capsys, *args, str(tmp_path / "none"))
    assert (code, stdout) == (2, "")
    line = stderr.splitlines()[-1]
    assert line.startswith("heal: error: no sample was answered: all 4 answers failed, the first with ImageError: ")


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────────────


class Twice(Questions):
    """A task that gives every sample the same id."""

    def samples(self) -> list[Sample]:
        return [Sample("1", s.unit, s.prompt, s.truth, s.image_source) for s in super().samples()]


def test_sample_ids_must_be_unique(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the id 1 occurs twice"):
        select_samples({"q": Twice(drawn(tmp_path, 1))}, None)


def test_different_order_of_methods_is_refused(tmp_path: Path) -> None:
    from heal import HEAL

    vlm, task = VLM.random(), Questions(drawn(tmp_path / "pictures", 1))
    methods: Mapping[str, Any] = {"plain": None, "heal": HEAL(alpha=0.6)}
    run(vlm, {"q": task}, methods, tmp_path / "run", Settings())
    other = {name: methods[name] for name in ("heal", "plain")}
    with pytest.raises(
        RunError, match=r"its methods in a different order: plain, heal, now heal, plain.*compared with"
    ):
        run(vlm, {"q": task}, other, tmp_path / "run", Settings(), resume=True)
    run(vlm, {"q": task}, methods, tmp_path / "run", Settings(), resume=True)
