import csv

import pytest
from PIL import Image
from typer.testing import CliRunner

from heal.cli.app import app
from heal.errors import ConfigError


def test_table_and_plot(tmp_path):
    out = tmp_path / "run"
    arguments = ["compare", "--model", "random", "--tasks", "pope,chair", "--count", "1", "--out", str(out)]
    arguments += ["--methods", "plain,heal:alpha=0.3,beam:beams=2"]
    again = [*arguments, "--resume"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "│ heal:alpha=0.3 │" in result.stdout
    assert "| heal:alpha=0.3 |" in (out / "table.md").read_text()
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"plain", "heal:alpha=0.3", "beam:beams=2"}
    assert {"POPE F1", "CHAIR_s", "Recall", "Len"} <= {row["figure"] for row in rows}
    assert CliRunner().invoke(app, [*again, "--format", "md"]).stdout.startswith((out / "table.md").read_text())
    with Image.open(out / "quality-cost.png") as image:
        assert image.size[0] > 300


def test_unknown_task_is_named(tmp_path):
    result = CliRunner().invoke(app, ["compare", "--tasks", "pope,pops", "--out", str(tmp_path / "x")])
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match="'pops'"):
        raise result.exception
