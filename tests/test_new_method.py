"""The guide to writing a method."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from heal.cli.app import app

GUIDE = Path(__file__).parent.parent / "docs" / "new-method.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "brighter.py").write_text(blocks("python")[0], encoding="utf-8")
    Image.new("RGB", (96, 96), "red").save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_method_is_short() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 40


@pytest.mark.slow
def test_every_command_of_the_guide_works(folder: Path) -> None:
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert [command.split()[1] for command in commands] == ["check-method", "run", "compare"]
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output, result.exception)
        assert "FAILED" not in result.output


def test_all_checks_pass_for_it(folder: Path) -> None:
    result = CliRunner().invoke(app, ["check-method", "brighter.py:Brighter", "--neutral", "strength=0"])
    assert result.exit_code == 0, result.output
    assert result.output.count("ok ") == 6
