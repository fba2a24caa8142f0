"""`heal view`: pages from traces, answers and runs, and one clear line for everything else."""

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from heal.cli import app as application
from heal.cli.app import main
from heal.world import World
from tests.bench.folders import finished
from tests.view.traces import plain, trace


def data_of(path: Path) -> dict[str, Any]:
    block = re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert block is not None
    (found,) = json.loads(block[1])
    return found


def saved(folder: Path) -> tuple[str, str]:
    for name, one in (("heal", trace()), ("plain", plain())):
        one.save(folder / f"{name}.safetensors")
    return str(folder / "heal.safetensors"), str(folder / "plain.safetensors")


def cli(*args: str) -> Result:
    result = CliRunner().invoke(application.app, list(args))
    assert result.exit_code == 0, result.output
    return result


def view(*args: str) -> Result:
    return cli("view", *args)


def error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The only line of a command that fails with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["heal", "view", *args])
    with pytest.raises(SystemExit) as ended, warnings.catch_warnings():
        main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_trace(tmp_path: Path) -> None:
    ended = view(saved(tmp_path)[0])
    path = tmp_path / "heal.view.html"
    assert re.fullmatch(rf"page: {re.escape(str(path))} \(0\.\d MB\)\n", ended.stdout)
    assert data_of(path)["answers"][0]["tokens"] == list(trace().tokens)


def test_traces_side_by_side_with_the_plain_model_first(tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    view(*saved(tmp_path), "-o", str(out), "--objects", "dog, car")
    found = data_of(out)
    assert [answer["name"] for answer in found["answers"]] == ["plain", "heal"]
    assert found["objects"] == ["car", "dog"]


def test_two_traces_of_one_method_have_different_names(tmp_path: Path) -> None:
    first, _ = saved(tmp_path)
    trace(seed=3).save(tmp_path / "other.safetensors")
    view(first, str(tmp_path / "other.safetensors"), "-o", str(tmp_path / "page.html"))
    names = [answer["name"] for answer in data_of(tmp_path / "page.html")["answers"]]
    assert names == ["heal", "heal (other)"]


def test_the_output_of_heal_run(tmp_path: Path) -> None:
    image, out = tmp_path / "a.png", tmp_path / "a.json"
    Image.new("RGB", (48, 48), (9, 90, 200)).save(image)
    traced = tmp_path / "t.safetensors"
    options = ["--model", "random", "--max-new-tokens", "5", "--compare", "--json"]
    for more in ([], ["--trace", str(traced)]):
        out.write_text(cli("run", str(image), "describe this", *options, *more).stdout)
        view(str(out), "-o", str(tmp_path / "page.html"))
        found = data_of(tmp_path / "page.html")
        assert (found["prompt"], len(found["images"])) == ("describe this", 1)
        assert [answer["name"] for answer in found["answers"]] == ["plain", "heal"]
        assert all(len(answer["tokens"]) == len(answer["logprobs"]) == 5 for answer in found["answers"])
        assert [answer["heads"] is not None for answer in found["answers"]] == [bool(more)] * 2
    assert (tmp_path / "t.plain.safetensors").is_file()


def test_the_output_of_heal_run_with_risks(tmp_path: Path) -> None:
    image, out, traced = tmp_path / "a.png", tmp_path / "a.json", tmp_path / "t.safetensors"
    World(0, "validation", "counter").scene(10_039).image.save(image)
    options = ["--json", "--risk", "--method", "heal:calibrate=false", "--max-new-tokens", "10"]
    out.write_text(
        cli("run", str(image), "Please describe this image in detail.", *options, "--trace", str(traced)).stdout
    )
    told = json.loads(out.read_text())["answer"]
    for path in (out, tmp_path / "bare.json"):  # with the trace, and without it
        view(str(path if path.exists() else rewritten(out, path)), "-o", str(tmp_path / "page.html"))
        (answer,) = data_of(tmp_path / "page.html")["answers"]
        assert [word["category"] for word in answer["words"]] == ["bear", "bed"]
        assert [word["doubtful"] for word in answer["words"]] == [False, True]
        assert answer["words"][1]["risk"] == pytest.approx(told["doubtful"][0]["risk"], rel=1e-4)
        assert answer["words"][1]["reasons"][0][0] == told["doubtful"][0]["reasons"][0]["about"]
        assert answer["risk"] == pytest.approx(told["risk"], rel=1e-4)
        assert (answer["alternatives"] is None) == (path != out)


def rewritten(path: Path, to: Path) -> Path:
    """The answer without its trace."""
    content = json.loads(path.read_text())
    del content["answer"]["trace"]
    to.write_text(json.dumps(content))
    return to


def test_an_answer_of_an_older_version_has_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    old = {"model": "m", "method": "vcd", "options": {"alpha": 1.0}}
    path.write_text(json.dumps(old | {"answer": {"text": "A kite.", "token_ids": [1, 2], "logprobs": [-0.1, -0.2]}}))
    view(str(path), "--objects", "dog")
    (answer,) = data_of(tmp_path / "a.view.html")["answers"]
    assert (answer["name"], answer["text"], answer["tokens"]) == ("vcd", "A kite.", None)
    assert [mark["category"] for mark in answer["mentions"]] == ["kite"]


def test_a_run(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    view(str(path), "--samples", "3")
    assert len(data_of(path / "view.html")["tasks"][0]["samples"]) == 3


def broken(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("[]", "is not the output of `heal run --json`: it has no `answer`"),
        ('{"answer": {}}', "`answer` has no text"),
        ('{"answer": {"text": "a", "tokens": [1]}}', "`tokens` of `answer` must be a list of strings"),
        (
            '{"answer": {"text": "a", "tokens": ["a"], "logprobs": [1, 2]}}',
            "must have one number for each of 1 tokens",
        ),
        ('{"answer": {"text": "a", "tokens": ["a"], "risk": ["x"]}}', "`risk` of `answer` must be numbers"),
        (
            '{"answer": {"text": "a", "tokens": ["a"], "risk": [0.5], "threshold": 0.5, "objects": [{"risk": 1}]}}',
            "`objects` of `answer` are no object words",
        ),
        (
            '{"answer": {"text": "a", "tokens": ["a"], "risk": [0.5], "threshold": 0.5, "objects": '
            '[{"risk": 1, "tokens": [0, 2], "category": "a", "reasons": []}]}}',
            "name tokens that the answer does not have",
        ),
        ('{"answer": {"text": "a", "trace": "gone.safetensors"}}', "there is no such file"),
    ],
)
def test_a_broken_answer_is_one_line(
    tmp_path: Path, content: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in error(monkeypatch, capsys, broken(tmp_path / "a.json", content))


def test_other_inputs_are_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heal, _ = saved(tmp_path)
    run = str(finished(tmp_path / "run"))
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(Path(heal).read_bytes()[:200])
    other = broken(tmp_path / "page.txt", "x")
    for arguments, says in (
        ([str(tmp_path / "none.safetensors")], "is missing: give a trace"),
        ([str(cut)], "is not a trace, or is damaged"),
        ([other], "is neither a trace (.safetensors), an answer (.json) nor a run folder"),
        ([str(tmp_path)], "is not a run: it has no run.json"),
        ([run, heal], "is a run folder: give it alone"),
        ([run, "--objects", "dog"], "--objects belongs to answers"),
        ([heal] * 9, "9 files are too many to compare: give at most 8"),
        ([heal, "-o", str(tmp_path)], "the page cannot be written"),
        ([], "Missing argument"),
    ):
        assert says in error(monkeypatch, capsys, *arguments)


def test_a_trace_of_another_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heal, _ = saved(tmp_path)
    path = broken(tmp_path / "a.json", json.dumps({"answer": {"text": "something else", "trace": heal}}))
    assert "belongs to another answer" in error(monkeypatch, capsys, path)
