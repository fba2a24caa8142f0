"""Names of tasks and methods."""

from pathlib import Path

import pytest

from heal import HEAL, Method
from heal.bench import create
from heal.bench.run.names import method_name, methods_from, split, task_name, tasks_from
from heal.errors import ConfigError
from heal.methods import Combined
from heal.methods.beam import Beam


def test_commas_split_methods_and_options() -> None:
    texts = ["plain,heal:alpha=0.5,interval=5,heal:layers=0+4-6", "heal", " "]
    assert split(texts) == ["plain", "heal:alpha=0.5,interval=5", "heal:layers=0+4-6", "heal"]
    found = methods_from(texts)
    assert list(found.values()) == [None, HEAL(alpha=0.5, interval=5), HEAL(layers=(0, 4, 5, 6)), HEAL()]
    assert list(found) == ["plain", "heal:alpha=0.5,interval=5", "heal:layers=0+4+5+6", "heal"]


def test_names_can_be_parsed_again() -> None:
    methods: list[Method | None] = [None, HEAL(), Beam(beams=2, length_penalty=0.5)]
    methods.append(HEAL(alpha=0.3, calibrate=False, factor_limit=None, mad=float("inf"), layers=(1,)))
    methods.append(Combined((HEAL(alpha=0.3, interval=4), Beam(beams=3))))
    for method in methods:
        (again,) = methods_from([method_name(method)]).values()
        assert again == method
    for task in (create("mini-pope"), create("mini-mme", count=3, subtasks=("count", "color"))):
        assert tasks_from([task_name(task)]) == {task_name(task): task}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain,hael:alpha=0.5", "unknown method 'hael'"),
        ("plain,plain", "plain is named twice"),
        ("plain:alpha=0.5", "unknown method 'plain'"),
        ("", "no method is given"),
    ],
)
def test_wrong_methods_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        methods_from([text])


def test_tasks() -> None:
    found = tasks_from(["mini-pope:count=2,splits=random+popular", "mini-chair"])
    assert list(found) == ["mini-pope:count=2,splits=random+popular", "mini-chair"]
    assert found["mini-pope:count=2,splits=random+popular"].samples()
    with pytest.raises(ConfigError, match="no task 'pop'"):
        tasks_from(["mini-pope", "pop"])
    with pytest.raises(ConfigError, match="needs official data"):
        tasks_from(["pope"])
    with pytest.raises(ConfigError, match="does not exist"):
        tasks_from(["pope"], Path("nowhere-at-all"))
