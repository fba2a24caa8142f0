import csv
import io
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from heal.cli.app import app
from heal.errors import ConfigError, DataError
from heal.studies.study import Report, Row, Table, available
from tests.bench import official

SMALL = ["heads-by-token", "--model", "random", "--samples", "2", "--max-new-tokens", "5"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


@pytest.fixture
def data(tmp_path):
    """CHAIR in the official layout, with two images."""
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    for name, text in official.chair().items():
        (folder / name).write_text(text)
    for number in (1, 3):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"COCO_val2014_{number:012d}.jpg")
    return folder


def test_list_has_one_line_per_study():
    lines = invoke("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(available())
    (line,) = [line for line in lines if line.startswith("heads-by-token")]
    assert line.endswith("100 images cost as much as 100 captions")
    assert json.loads(invoke("list", "--json").stdout)["studies"][0]["study"] == next(iter(available()))


def test_a_study_prints_and_writes_its_table(tmp_path):
    result = invoke(*SMALL, "--out", tmp_path / "out", "--format", "csv")
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    written = list(csv.DictReader((tmp_path / "out" / "heads-by-token" / "table.csv").open()))
    assert [{"study": "heads-by-token", **row} for row in written] == rows
    again = json.loads(invoke(*SMALL, "--out", tmp_path / "out", "--json").stdout)
    verdicts = [verdict["text"] for verdict in again["heads-by-token"]["verdicts"]]
    assert (tmp_path / "out" / "heads-by-token" / "verdict.txt").read_text().splitlines() == verdicts
    shown = invoke(*SMALL, "--out", tmp_path / "out", "--format", "md").stdout
    assert verdicts[0] in shown
    assert "| quantity |" in shown


@pytest.mark.parametrize(("form", "printed"), [("table", False), ("md", False), ("csv", False), ("json", True)])
def test_a_study_that_could_measure_nothing_prints_no_table(tmp_path, form, printed):
    short = ["within-interval", "--model", "random", "--samples", "1", "--max-new-tokens", "2"]
    result = invoke(*short, "--out", tmp_path / "out", "--format", form)
    assert result.exit_code == 0, result.output
    assert bool(result.stdout.strip()) == (form != "csv")
    assert ("too few tokens, because no answer has three" in result.stdout) == (form != "csv")
    if printed:
        assert json.loads(result.stdout)["within-interval"]["rows"] == []


def test_official_data(tmp_path, data):
    result = invoke("heads-by-token", "--model", "random", "--max-new-tokens", 5, "--data", data, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "official" in (tmp_path / "heads-by-token" / "table.csv").read_text()
    assert "all images of official data" in (tmp_path / "heads-by-token" / "table.md").read_text()


def test_missing_images_are_named_before_a_model_is_loaded(tmp_path, data):
    (data / "images" / "COCO_val2014_000000000003.jpg").unlink()
    result = invoke("heads-by-token", "--model", "/no/such/model", "--data", data, "--out", tmp_path / "out")
    assert isinstance(result.exception, DataError)
    with pytest.raises(DataError, match=r"1 of 2 images are missing: .*COCO_val2014_000000000003\.jpg"):
        raise result.exception


def test_plan_measures_nothing(tmp_path):
    result = invoke(*SMALL, "--plan", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    (part,) = plan["parts"]
    assert (part["samples"], part["answers"], part["tokens"], part["problem"]) == (2, 2, 10, "")
    assert plan["hours"] == part["hours"] > 0
    assert "measured on this machine" in plan["speed"]
    assert plan["command"].startswith("accelerate launch --num_processes 4 -m heal study heads-by-token")
    assert "--samples 2" in plan["command"]


def test_all_leaves_out_the_studies_whose_data_is_missing(tmp_path, monkeypatch):
    measured = []

    def study(runner, study, setup):
        measured.append(study.name)
        return Report((Table(study.name, [Row({"x": "y"}, {})]),), ())

    monkeypatch.setattr("heal.studies.running.StudyRunner.study", study)
    result = invoke("all", "--model", "random", "--samples", "1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert measured == [name for name in available() if name != "recent"]
    assert "recent is left out: the miniature world has no mmhal" in result.stderr
    assert "MMHal-Bench: response_template.json" in result.stderr
    alone = invoke("recent", "--model", "random", "--out", tmp_path)
    assert isinstance(alone.exception, DataError)
    assert str(alone.exception).startswith("recent: the miniature world has no mmhal")


def test_plan_times_every_method(tmp_path):
    result = invoke("table1", "recent", "--plan", "--model", "random", "--samples", "1", "--method", "vcd,heal")
    assert result.exit_code == 0, result.output
    assert "recent: the miniature world has no mmhal" in result.stdout
    assert "table1" in result.stdout
    assert "measured on this machine" in result.stdout
    assert "accelerate launch --num_processes 4 -m heal study table1 recent --model random" in result.stdout


def test_plan_without_model_and_data(tmp_path):
    (tmp_path / "data").mkdir()
    chosen = ["--model", tmp_path / "llava-1.5-7b-hf", "--data", tmp_path / "data"]
    result = invoke("heads-by-token", "--plan", *chosen)
    assert result.exit_code == 0, result.output
    assert "objects.json is missing" in result.stdout
    assert "model: " in result.stdout
    assert "predicted, not measured: llava-1.5-7b on one A100" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads-by-token"], "--out is missing"),
        (["nothing", "--out", "x"], "there is no study 'nothing'"),
        (["heads-by-token", "--distribution", "odd", "--out", "x"], "distributions must be some of"),
    ],
)
def test_bad_arguments(arguments, message):
    result = invoke(*arguments)
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise result.exception
