"""`heal eval` and `heal score RUN`: output, files, refused input, and two processes that share the work."""

import json
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from heal.cli import app as application
from heal.errors import RunError

TASK = "mini-pope:count=1"
HEALED = "heal:alpha=0.6,interval=2"
FEW = ["--model", "random", "--limit", "5", "--max-new-tokens", "2", "--batch-size", "3"]


def cli(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(application.app, list(args))
    assert result.exit_code == code, result.output
    return result


def exact(path: Path) -> dict[tuple[str, ...], Any]:
    lines = [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]
    return {(r["task"], r["method"], r["sample"]): (r["text"], r["fired"], r["parse"], r["error"]) for r in lines}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    path = tmp_path_factory.mktemp("runs") / "run"
    methods = ["--method", f"plain,{HEALED}", "--method", "heal:calibrate=false"]
    return path, cli("eval", TASK, *FEW, *methods, "--out", str(path))


def test_tables(done: tuple[Path, Result]) -> None:
    path, result = done
    out = result.stdout
    assert f"{TASK}: 5 answers, 95 % intervals; differences to plain, paired" in out
    for name in ("plain", "heal:alpha=0.6,", "heal:calibrate=false"):  # long names are wrapped at commas
        assert sum(line.startswith(f"│ {name} ") for line in out.splitlines()) >= 2
    for split in ("random", "popular", "adversarial"):
        assert sum(line.startswith(f"│ {split} ") for line in out.splitlines()) >= 3
    for column in ("f1 ↑", "difference", "yes", "ms/token", "ratio", "peak memory", "fired", "changed answers"):
        assert all(word in out for word in column.split())  # headings are wrapped too
    assert "! heal:calibrate=false CHANGED NO ANSWER of plain: it was inactive (calibrate=False" in out
    assert "! heal:alpha" not in out
    assert "15/15" in result.stderr
    assert "RANDOM weights" in result.stderr
    assert {p.name for p in path.iterdir()} == {"run.json", "samples.jsonl", "records.jsonl", "scores.json"}


def test_rescoring(done: tuple[Path, Result]) -> None:
    path, result = done
    (path / "scores.json").unlink()
    assert cli("score", str(path)).stdout == result.stdout
    found = json.loads(cli("score", "run", str(path), "--json").stdout)
    assert found == {"run": str(path), **json.loads((path / "scores.json").read_text())}
    assert [row["method"] for row in found["rows"]] == ["plain", HEALED, "heal:calibrate=false"]
    first, second, third = found["rows"]
    assert first["figures"]["unparsable"].keys() == {"value", "low", "high"}
    assert (first["differences"], second["fired"], third["unchanged"]) == (None, 5, True)


def test_comparison_with_any_method(done: tuple[Path, Result]) -> None:
    path, _ = done
    before = json.loads(cli("score", str(path), "--json").stdout)["rows"]
    healed, plain, measured = json.loads(cli("score", str(path), "--against", HEALED, "--json").stdout)["rows"]
    assert [row["method"] for row in (healed, plain, measured)] == [HEALED, "plain", "heal:calibrate=false"]
    assert healed["differences"] is None
    for name, there in before[1]["differences"].items():
        assert plain["differences"][name]["value"] == pytest.approx(there["value"] and -there["value"])
    assert plain["changed"] == before[1]["changed"]
    assert json.loads((path / "scores.json").read_text())["rows"] == before  # unchanged
    result = CliRunner().invoke(application.app, ["score", str(path), "--against", "vcd"])
    assert isinstance(result.exception, RunError)
    assert "choose from plain, heal:alpha" in str(result.exception)


def test_resuming(done: tuple[Path, Result], tmp_path: Path) -> None:
    args = ["eval", TASK, *FEW, "--method", "plain,heal", "--out", str(tmp_path / "run"), "--json"]
    first = json.loads(cli(*args, "--resume").stdout)
    whole = exact(tmp_path / "run")
    records = tmp_path / "run" / "records.jsonl"
    records.write_bytes(records.read_bytes()[:1000])
    again = json.loads(cli(*args, "--resume").stdout)
    assert exact(tmp_path / "run") == whole
    figures = [[row["figures"] for row in found["rows"]] for found in (first, again)]
    assert figures[0] == figures[1]


def test_broken_image_gives_exit_code_4(tmp_path: Path) -> None:
    pope = tmp_path / "data"
    (pope / "images").mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for index in range(4):
        name = f"COCO_val2014_00000000000{index}.jpg"
        image = np.random.default_rng(index).integers(0, 256, (56, 56, 3), dtype=np.uint8)
        Image.fromarray(image).save(pope / "images" / name)
        lines.append({"question_id": index, "image": name, "text": "Is there a dog in the image?", "label": "yes"})
    (pope / "coco_pope_random.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (pope / "images" / lines[2]["image"]).write_bytes(b"nothing")
    args = ["pope:splits=random", *FEW, "--method", "plain", "--data", str(pope), "--out", str(tmp_path / "run")]
    result = cli("eval", *args, code=4)
    assert "! plain: 1 samples failed; records.jsonl says why" in result.stdout
    texts = [text for text, _, _, error in exact(tmp_path / "run").values() if error is None]
    assert len(texts) == 3
    (pope / "coco_pope_random.json").unlink()
    assert json.loads(cli("score", str(tmp_path / "run"), "--json").stdout)["failed"] == 1  # needs no data


BAD: dict[str, tuple[list[str], str]] = {
    "task": (["pop"], "there is no task 'pop'"),
    "task option": (["mini-pope:colour=red"], "mini-pope has no option 'colour'"),
    "data": (["pope"], "pope needs official data: give its folder with --data"),
    "method": ([TASK, "--method", "plain,hael"], "unknown method 'hael'"),
    "layers": ([TASK, "--method", "heal:layers=6"], "(0 to 5)"),
    "generate": ([TASK, "--generate", "beams=3"], "generate() has no option 'beams'"),
    "generate without a value": ([TASK, "--generate", "num_beams"], "write key=value"),
    "folder": ([TASK, "--out", "DONE"], "exists already: give another folder, or resume the run in it"),
    "another run": ([TASK, "--out", "DONE", "--resume"], "has a different configuration: "),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_gives_one_line_and_exit_code_2(
    monkeypatch, capsys, done: tuple[Path, Result], tmp_path: Path, name: str
) -> None:
    args, message = BAD[name]
    out = [] if "--out" in args else ["--out", str(tmp_path / "run")]
    given = [str(done[0]) if arg == "DONE" else arg for arg in args]
    monkeypatch.setattr(sys, "argv", ["heal", "eval", *given, *out, *FEW])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
        application.main()
    stdout, stderr = capsys.readouterr()
    (line,) = (line for line in stderr.splitlines() if line.startswith("heal: error:"))
    assert (ended.value.code, stdout) == (2, "")
    assert message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_share_the_work(done: tuple[Path, Result], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(port)]
    methods = ["--method", f"plain,{HEALED},heal:calibrate=false"]
    ended = subprocess.run(
        [
            sys.executable,
            *launch,
            "-m",
            "heal",
            "eval",
            TASK,
            *FEW,
            *methods,
            "--out",
            str(tmp_path / "run"),
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    assert "9/9" in ended.stderr  # the share of the main process: the first of two batches
    found = json.loads(ended.stdout)
    assert (found["failed"], found["missing"]) == (0, 0)
    assert exact(tmp_path / "run") == exact(done[0])
    assert [p.name for p in (tmp_path / "run").glob("records*")] == ["records.jsonl"]
