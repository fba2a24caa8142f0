"""`heal run` without arguments: the demo."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from heal.cli import app as application
from heal.cli import demo
from heal.cli.run import describe
from heal.engine.tally import Fired
from heal.errors import ConfigError
from heal.generate import Answer
from heal.studies.objects import ObjectToken
from heal.world import World


def test_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "heal", "run", "--out", str(tmp_path / "demo")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = said.splitlines()
    view = World(0, "validation", "counter").scene(demo.SCENE)
    assert lines[0] == f"image: {tmp_path / 'demo' / 'scene.png'}"
    assert lines[1] == f"it shows: {', '.join(sorted(view.objects))}"
    plain, healed = (next(x for x in lines if x.startswith(f"{name}: ")) for name in ("plain", "heal"))
    assert plain.partition(":")[2] != healed.partition(":")[2]
    assert sum(line.startswith("  hallucinated: ") for line in lines) == 2
    assert sum(line.startswith("  visual share of the synergy heads: ") for line in lines) == 2
    assert "a different answer" in said
    counts = [line for line in lines if f" of {demo.MANY} descriptions" in line]
    assert [line.split(":")[0] for line in counts] == ["  plain", "  heal"]
    assert counts[0].partition(":")[2] != counts[1].partition(":")[2]
    for name in ("scene", "heads", "mix"):
        with Image.open(tmp_path / "demo" / f"{name}.png") as image:
            assert image.size[0] > 300


def test_hallucinated_names_are_counted() -> None:
    def say(texts: Sequence[str]) -> Any:
        answers = [Answer(text, (), (), "stop", 1, 1.0, 0.5) for text in texts]
        return SimpleNamespace(generate=lambda *args, **options: answers)

    views: list[Any] = [
        SimpleNamespace(image=None, objects=frozenset(names)) for names in ({"dog", "cup"}, {"car"}, {"fork"})
    ]
    said = ["A dog and a cat. The cat sleeps near two knives.", "A car.", "A field."]
    assert demo.count_objects(say(said), views, None) == (
        "2 objects hallucinated in 1 of 3 descriptions; 2 of 4 objects correct"
    )


PARTS = np.zeros(2, "float32")


def test_hallucinated_names_are_marked() -> None:
    scores, types = np.zeros((1, 1), "float32"), np.zeros((1, 1), "uint8")
    token = ObjectToken(0, "cup", False, 0, 0, True, scores, types, scores, PARTS)
    answer = Answer("A dog and two cups near a cup.", (), (), "stop", 1, 1.0, 0.5)
    assert demo.marked(answer, [token]) == "A dog and two [!cups!] near a [!cup!]."
    assert demo.marked(answer, []) == answer.text


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(application.app, ["run", "--out", str(tmp_path / "file" / "demo")])
    assert isinstance(result.exception, ConfigError)
    assert "cannot be written" in str(result.exception)


def test_shares_that_were_not_measured_are_left_out() -> None:
    def token(share: float, correct: bool) -> ObjectToken:
        types = np.full((1, 1), 4, "uint8")
        shares, total = np.full((1, 1), share, "float32"), np.zeros((1, 1), "float32")
        return ObjectToken(0, "cup", correct, 0, 0, True, shares, types, total, PARTS)

    assert demo.drift([token(np.nan, True), token(np.nan, False)]) == ""
    assert demo.drift([token(0.25, True)]) == (
        "visual share of the synergy heads: 0.25 at correct names, – at hallucinated ones"
    )


def test_changes_without_sizes() -> None:
    """A search has no quantities of its own."""
    answer = Answer("A dog.", (1, 2), (0.0, 0.0), "stop", 1, 1.0, 0.5, Fired(1, 1))
    assert describe(answer, None) == "fired: 1 change in 1 of 2 steps"
    answer = replace(answer, fired=Fired(2, 5, {"beta": 0.5}))
    assert describe(answer, answer).splitlines() == [
        "fired: 5 changes in 2 of 2 steps; mean size: beta 0.50",
        "compared with the plain model: the same answer",
    ]
