"""The study of update intervals on hand-made answers."""

import numpy as np
import pytest

from heal.methods import HEAL
from heal.studies.comparison import EMBEDDED_HEAL
from heal.studies.interval import NEVER, PLAIN, STUDY, chosen, parts, report, settings
from heal.studies.parts import Evaluation, Measured, Measurement, Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from tests.studies.made_answers import captions, evaluated, value, wrong_yes

SETUP = Setup(samples=3)
GOOD = ("A boat. A car.", "A chair. A person.", "A cow. A kite.")
BAD = ("A boat. A dog.", "A dog. A person.", "A cow. A dog.")


def found(tmp_path):
    names = list(settings(SETUP))
    answers = {
        "chair natural": {name: captions(SETUP, *(BAD if name == "20" else GOOD)) for name in names},
        "pope natural": {name: wrong_yes(SETUP, 99 if name in ("20", PLAIN) else 0) for name in names},
    }
    ms = dict.fromkeys(names, 1.0) | {"2": 3.0, "10": 1.5}
    times = {name: {"ms": value, "first_ms": 5.0, "memory": 9.0} for name, value in ms.items()}
    records = [Measured(id, {"times": times, "skipped": {}}) for id in ("a", "b")]
    found = {"answers": evaluated(tmp_path / "run", SETUP.tasks("chair", "pope"), answers)}
    return Found(SETUP, found | {"times": Records.of(records)})


def test_the_form_of_heal():
    assert chosen(Setup()) == EMBEDDED_HEAL
    assert chosen(Setup(model="llava")) == HEAL()
    given = HEAL(alpha=0.6)
    assert chosen(Setup(methods={"x": given})) == given
    assert [getattr(m, "interval", None) for m in settings(Setup()).values()] == [None, 2, 5, 10, 15, 20, NEVER]


def test_parts():
    answers, times = parts(SETUP)
    assert isinstance(answers, Evaluation)
    assert isinstance(times, Measurement)
    assert list(answers.tasks) == ["chair natural", "pope natural"]
    assert answers.settings == SETUP.settings
    assert times.passes == len(answers.methods) == 7


@pytest.mark.usefixtures("few_are_enough")
def test_report(tmp_path):
    made = report(found(tmp_path))
    rows = {row.labels["S"]: row.values for row in made.tables[0].rows}
    assert list(rows) == ["plain", "2", "5", "10", "15", "20", "once"]
    assert value(rows["10"], "POPE F1").paper == "87.8 / 88.4"
    assert value(rows["10"], "POPE F1").value == 100
    assert value(rows["once"], "POPE F1").paper is None
    assert value(rows["20"], "CHAIR_i ↓").value == pytest.approx(50)
    assert value(rows["2"], "time ratio").value == 3
    assert rows["plain"].get("CHAIR_i at equal recall") is None
    assert value(rows["20"], "CHAIR_i at equal recall").value > 0
    by_claim = {verdict.claim: verdict for verdict in made.verdicts}
    lower = by_claim["lower POPE F1 at S = 20 than at S = 2 (natural)"]
    assert lower.outcome == Outcome.CONFIRMED
    assert lower.text.endswith("paper -0.8 / -0.8")
    assert by_claim["CHAIR_i at S = 10 as at S = 2 (natural)"].outcome == Outcome.CONSISTENT
    higher = by_claim["higher CHAIR_i at S = 20 than at S = 2 (natural)"]
    assert "50.00 (50.00 to 50.00)" in higher.text
    assert by_claim["less time per token at S = 10 than at S = 2"].text.split(": ")[1].startswith("-0.50")
    assert any("3.0 tokens" in note for note in made.notes)
    figure = made.figures["interval"]()
    assert figure.axes[0].get_title(loc="left") == "POPE F1"
    assert np.asarray(figure.axes[3].lines[1].get_ydata(), float).tolist() == [3, 1, 1.5, 1, 1, 1]


def test_study():
    assert STUDY.benchmarks == ("chair", "pope")
