"""`heal run` without arguments: the demo."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heal.cli import app as application
from heal.cli import demo
from heal.cli.common import EMBEDDED, load
from heal.cli.demo_figures import Named, corrected, figures
from heal.cli.run import describe
from heal.detect.model import Detector
from heal.engine.tally import Fired
from heal.errors import ConfigError
from heal.generate import Answer
from heal.methods import Guard, Method
from heal.studies.comparison import EMBEDDED_HEAL
from heal.studies.objects import PROMPT
from heal.world import World

METHODS: dict[str, Method | None] = {"plain": None, "HEAL": EMBEDDED_HEAL, "guard": Guard()}


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.demo(None, tmp_path / "demo", scenes=2)
    said, lines = (out := capsys.readouterr().out), out.splitlines()
    assert lines[0].startswith("4 drawn scenes")
    assert [line.split()[1] for line in lines if line.startswith("│ ")][-3:] == ["plain", "HEAL", "guard"]
    objects = demo.example_scene().objects
    assert f"The scene shows: {', '.join(sorted(objects))}" in lines
    assert f"One scene, {demo.CHOSEN}." in lines
    assert "  left out (risk " in said
    page = tmp_path / "demo" / "index.html"
    assert lines[-1].startswith(f"open {page} in a browser")
    data = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert data is not None
    summary, example = json.loads(data[1])
    assert [row[0] for row in summary["rows"]] == [one["name"] for one in example["answers"]] == list(METHODS)
    assert all(one["risk"] and one["heads"] and one["patches"] for one in example["answers"])
    assert example["objects"] == sorted(objects)
    named = [{mention["category"] for mention in one["mentions"]} for one in example["answers"]]
    plain, *others = ((own - objects, own & objects) for own in named)
    assert plain[0]
    assert all(not wrong and right >= plain[1] for wrong, right in others)


def test_another_method_is_not_praised() -> None:
    """The example was chosen for HEAL and the guard: what it shows of another method is not claimed."""

    def answer(text: str) -> Answer:
        return Answer(text, (), (), "stop", 1, 1.0, 0.5)

    plain, good, bad = map(answer, ("A bear and a kite.", "A bear and a cake.", "A bear and a bed."))
    assert demo.reason({"plain": plain, "other": good}) == demo.CHOSEN
    assert demo.reason({"plain": plain, "other": bad}) == demo.OTHERWISE


@pytest.mark.slow
def test_the_example_is_the_first_of_its_kind() -> None:
    vlm, world = load(EMBEDDED, "auto", None), World(0, "validation", "counter")
    views = [world.scene(index) for index in range(demo.FIRST, demo.EXAMPLE + 1)]
    images, prompts = [view.image for view in views], [PROMPT] * len(views)
    plain, *others = (
        vlm.generate(images, prompts, method=method, max_new_tokens=demo.TOKENS, do_sample=False)
        for method in METHODS.values()
    )
    found = [
        all(corrected(Named.of(first.text, view.objects), Named.of(own[i].text, view.objects)) for own in others)
        for i, (first, view) in enumerate(zip(plain, views, strict=True))
    ]
    assert found == [False] * (len(views) - 1) + [True]


@pytest.mark.slow
def test_the_whole_demo_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "heal", "run", "--out", str(tmp_path / "demo")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith(f"{2 * demo.SCENES} drawn scenes")
    assert (tmp_path / "demo" / "index.html").stat().st_size > 100_000
    assert "answers/s" in result.stderr


def test_the_detector_was_not_fitted_on_the_scenes() -> None:
    detector = Detector.of_model(load(EMBEDDED, "auto", None).model)
    assert detector is not None
    data = str(detector.source["data"])
    fitted = [int(number) for number in re.findall(r"(\d+) (?:natural|counter) scenes", data)]
    assert fitted
    assert max(fitted) <= demo.FIRST


def test_named_objects_are_counted() -> None:
    objects = [frozenset(names) for names in ({"dog", "cup"}, {"car"}, {"fork"})]
    said = {
        "plain": ["A dog and a cat. The cat sleeps near two knives.", "A car.", "A field."],
        "other": ["A dog.", "A car and a cup.", "A fork and a fork."],
    }
    found = figures({name: list(map(Named.of, texts, objects)) for name, texts in said.items()})
    plain, other = found.rows
    assert plain == ["plain", "2 of 4", "", "2 of 4", ""]
    assert other[:2] == ["other", "1 of 4"]
    assert re.fullmatch(r"−1 \(−6 to \+3\)", other[2])
    assert (other[3], other[4]) == ("3 of 4", "+1 (0 to +3)")
    assert found.corrected.startswith("Not typical: of 1 plain answers that hallucinate, ")
    assert found.corrected.endswith(": other 1.")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("A dog.", True),
        ("A dog and a cup.", True),
        ("A dog and a cat.", False),
        ("A cup.", False),
    ],
)
def test_an_answer_is_corrected_without_losing_an_object(said: str, expected: bool) -> None:
    objects = frozenset({"dog", "cup"})
    assert corrected(Named.of("A dog and a cat.", objects), Named.of(said, objects)) is expected
    assert not corrected(Named.of("A dog.", objects), Named.of(said, objects))


def test_hallucinated_names_are_marked() -> None:
    text = "A dog and two cups near a cup."
    assert demo.marked(text, frozenset({"dog"})) == "A dog and two [!cups!] near a [!cup!]."
    assert demo.marked(text, frozenset({"dog", "cup"})) == text


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(application.app, ["run", "--out", str(tmp_path / "file" / "demo")])
    assert isinstance(result.exception, ConfigError)
    assert "cannot be written" in str(result.exception)


def test_changes_without_sizes() -> None:
    """A search has no quantities of its own."""
    answer = Answer("A dog.", (1, 2), (0.0, 0.0), "stop", 1, 1.0, 0.5, Fired(1, 1))
    assert describe(answer, None) == "fired: 1 change in 1 of 2 steps"
    answer = replace(answer, fired=Fired(2, 5, {"beta": 0.5}))
    assert describe(answer, answer).splitlines() == [
        "fired: 5 changes in 2 of 2 steps; mean size: beta 0.50",
        "compared with the plain model: the same answer",
    ]
