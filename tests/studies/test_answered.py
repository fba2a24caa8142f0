"""Figures and differences of hand-made answers."""

import pytest

from heal.studies.answered import EQUAL_RECALL, Answered, caption_cells
from heal.studies.setup import Setup
from heal.studies.study import Value
from tests.studies.made_answers import captions, evaluated, wrong_yes

SETUP = Setup(samples=3)
PLAIN = captions(SETUP, "A boat. A cow.", "A chair. A person.", "A cow. A dog.")
BETTER = captions(SETUP, "A boat. A car.", "A chair. A person.", "A cow. A dog.")
WORSE = captions(SETUP, "A boat. A cow.", "A dog. A person.", "A cow. A dog.")


@pytest.fixture
def answered(tmp_path):
    texts = {"plain": PLAIN, "better": BETTER, "worse": WORSE}
    found = evaluated(tmp_path / "run", SETUP.tasks("chair"), {"chair natural": texts})
    return Answered(found, "chair natural", SETUP.task("chair", "natural"))


def test_figures_of_captions(answered):
    cells = caption_cells(answered, "better")
    values = {heading: cell.value for heading, cell in cells.items() if isinstance(cell, Value)}
    assert values.pop(EQUAL_RECALL) < 0
    assert values == pytest.approx({"CHAIR_s ↓": 100 / 3, "CHAIR_i ↓": 100 / 6, "recall": 50, "length": 6}, rel=1e-12)
    assert list(cells) == ["CHAIR_s ↓", "CHAIR_i ↓", EQUAL_RECALL, "recall", "length"]
    assert caption_cells(answered, "plain")[EQUAL_RECALL] is None


def test_differences_between_any_two_methods(answered):
    found = answered.differences("better", "worse")
    assert found["chair_i"].value == pytest.approx(100 * (3 - 1) / 6)
    assert found["recall"].value == pytest.approx(100 * (3 - 5) / 10)
    assert found["len"].value == 0
    assert answered.differences("worse", "worse")["chair_s"].value == 0
    gain = answered.gain("worse", "better")
    assert gain is not None
    assert gain.mean.value < 0
    assert gain.highest.value == pytest.approx(100 * 1 / 6 - 50, abs=20)


def test_samples_that_one_method_did_not_answer_are_left_out(tmp_path):
    task = SETUP.tasks("pope")
    every = wrong_yes(SETUP, 0)
    first = next(iter(every))
    some = {id: text for id, text in every.items() if id != first}
    found = evaluated(tmp_path / "run", task, {"pope natural": {"plain": every, "x": some}})
    answered = Answered(found, "pope natural", task["pope natural"])
    assert list(answered.records("x")) == list(some)
    assert answered.differences("plain", "x")["accuracy"].value == 0
    assert answered.gain("plain", "x") is None
    assert answered.parses("plain")[first] == {"answer": "yes", "unparsable": False}
