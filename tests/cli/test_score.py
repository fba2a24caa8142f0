"""`heal score` and `heal data check`: JSON, tables and one-line errors."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heal.cli import app as application

QUESTIONS = [
    {"question_id": 1, "image": "1.jpg", "text": "Is there a dog in the image?", "label": "yes"},
    {"question_id": 2, "image": "1.jpg", "text": "Is there a cat in the image?", "label": "no"},
]


def cli(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(application.app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result.stdout


def parsed(text: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


@pytest.fixture
def pope(tmp_path: Path) -> list[str]:
    said = [{"question_id": 2, "answer": "maybe"}, {"question_id": 1, "text": "Yes."}]
    answers, questions = lines(tmp_path / "a.jsonl", said), lines(tmp_path / "q.json", QUESTIONS)
    return ["score", "pope", "--answers", str(answers), "--questions", str(questions)]


def test_pope(pope: list[str]) -> None:
    found = parsed(cli(*pope, "--json"))
    assert (found["accuracy"], found["yes_ratio"], found["unparsable"], found["parser"]) == (50, 100, 1, "official")
    assert parsed(cli(*pope, "--json", "--parser", "strict"))["yes_ratio"] == 50
    table = cli(*pope)
    assert "POPE, 2 answers (parser official, version other)" in table
    assert "50.00" in table
    cli(*pope, "--parser", "kind", code=2)
    assert "| accuracy | 50.00 |" in cli(*pope, "--format", "md")
    headings, values = cli(*pope, "--format", "csv").splitlines()
    assert dict(zip(headings.split(","), values.split(","), strict=True))["accuracy"] == "50.0"


def test_chair(tmp_path: Path) -> None:
    captions = lines(tmp_path / "c.jsonl", [{"image_id": "7", "caption": "A dog and cats. A bus"}])
    objects = tmp_path / "o.json"
    objects.write_text('{"7": ["dog"]}')
    args = ["score", "chair", "--captions", captions, "--objects", objects]
    found = parsed(cli(*args, "--json"))
    assert (found["chair_s"], found["recall"], found["len"], found["n"]) == (100, 100, 7, 1)
    assert found["chair_i"] == pytest.approx(200 / 3)
    assert parsed(cli(*args, "--json", "--complete-sentences"))["chair_i"] == 50
    table = tmp_path / "s.txt"
    table.write_text("dog, cat\n")
    assert parsed(cli(*args, "--json", "--synonyms", table))["chair_s"] == 0
    assert "chair_s" in cli(*args)


def test_undefined_figures_are_null(tmp_path: Path) -> None:
    captions = lines(tmp_path / "c.jsonl", [{"image_id": 7, "caption": "Nothing."}])
    (tmp_path / "o.json").write_text('{"7": ["dog"]}')
    args = ["score", "chair", "--captions", captions, "--objects", tmp_path / "o.json"]
    assert parsed(cli(*args, "--json"))["chair_i"] is None
    assert "–" in cli(*args)


def test_mme(tmp_path: Path) -> None:
    (tmp_path / "existence.txt").write_text("1.jpg\tIs it?\tYes\tYes\n1.jpg\tIs it not?\tNo\tno.\n")
    found = parsed(cli("score", "mme", "--answers", tmp_path, "--json"))
    assert (found["existence/score"], found["total"], found["subtasks"]) == (200, 200, ["existence"])
    assert "existence" in cli("score", "mme", "--answers", tmp_path)
    assert "| existence | 100.00 | 100.00 | 200.00 |" in cli("score", "mme", "--answers", tmp_path, "--format", "md")
    (tmp_path / "colour.txt").write_text("1.jpg\tIs it?\tYes\tYes\n")
    assert parsed(cli("score", "mme", "--answers", tmp_path, "--json"))["ignored"] == ["colour.txt"]


def test_data_check(tmp_path: Path) -> None:
    lines(tmp_path / "coco_pope_random.json", QUESTIONS)
    assert cli("data", "check", tmp_path) == "pope: coco: random 2; version: other; 0 of 1 images\n"
    (finding,) = parsed(cli("data", "check", tmp_path, "--json"))["found"]
    assert (finding["task"], finding["version"], finding["problem"]) == ("pope", "other", "")
    assert "| pope | . |" in cli("data", "check", tmp_path, "--format", "md")
    assert cli("data", "check", tmp_path, "--format", "csv").startswith("task,place,what,version")
    lines(tmp_path / "coco_pope_random.json", QUESTIONS[:1] * 2)
    assert "pope: broken: POPE (coco): the id random/1 occurs twice" in cli("data", "check", tmp_path, code=2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["score", "chair", "--captions", "gone", "--objects", "gone"],
            "gone is missing; it comes from the COCO",
        ),
        (["score", "pope", "--answers", "gone", "--questions", "gone"], "gone is missing; it comes from the GitHub"),
        (["score", "mme", "--answers", "gone"], "gone is not a folder"),
        (["data", "check", "gone"], "gone is not a folder"),
        (["data", "check", "."], "no benchmark data was recognised"),
    ],
)
def test_errors_are_one_line(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["heal", *args])
    with pytest.raises(SystemExit) as stop:
        application.main()
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("heal: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_folder_argument_means_the_run_command() -> None:
    """`heal score RUN` works next to `heal score chair`."""
    import typer

    from heal.cli.score import _Group

    app = typer.Typer(cls=_Group)
    app.command("chair")(lambda: print("chair"))
    app.command("run")(lambda folder: print(f"run {folder}"))
    assert CliRunner().invoke(app, ["chair"]).stdout == "chair\n"
    assert CliRunner().invoke(app, ["some/folder"]).stdout == "run some/folder\n"
    assert CliRunner().invoke(app, ["run", "some/folder"]).stdout == "run some/folder\n"
