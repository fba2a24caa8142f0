"""Table 1 on hand-made answers."""

from dataclasses import replace

import pytest

from heal.bench.tasks.base import Task
from heal.methods import HEAL, OPERA, VCD, Guard, available
from heal.studies.answered import Answered
from heal.studies.paper import printed
from heal.studies.parts import Evaluated, Evaluation
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome, Report
from heal.studies.table1 import STUDY, parts, report
from heal.studies.table1_methods import ABSENT, FEWER, groups, methods, rows_in_order
from heal.studies.table1_verdicts import Standing
from tests.studies import made
from tests.studies.made_answers import evaluated, value

IMAGES = 20
SETUP = Setup(samples=IMAGES, methods={"vcd": VCD(), "opera": OPERA(), "heal": HEAL()})


def described(task: Task, wrong: int) -> dict[str, str]:
    """Captions with one correct object each; the first ones also name two hallucinated objects."""
    found = {}
    for place, sample in enumerate(task.samples()):
        objects = sample.truth["objects"]
        one, other, *_ = (name for name in ("zebra", "giraffe", "sheep", "cow") if name not in objects)
        found[sample.id] = f"A {one}, a {other} and a {objects[0]}." if place < wrong else f"A {objects[0]}."
    return found


def answers(task: Task, wrong: int) -> dict[str, str]:
    """Correct answers, except that four times as many absent objects are affirmed."""
    absent = [sample.id for sample in task.samples() if sample.truth["label"] == "no"][: 4 * wrong]
    return {s.id: "Yes" if s.id in absent else str(s.truth["label"]).capitalize() for s in task.samples()}


WRONG = {"plain": 12, "vcd": 12, "opera": 0, "heal": 2}


def found(tmp_path, **left_out: str) -> Found:
    made_parts: dict[str, Evaluated] = {}
    for part in parts(SETUP):
        assert isinstance(part, Evaluation)
        names = [name for name in part.methods if name not in left_out]
        texts = {}
        for name, task in part.tasks.items():
            write = described if name.startswith("chair") else answers
            texts[name] = {method: write(task, WRONG[method]) for method in names}
        one = evaluated(tmp_path / part.name, part.tasks, texts)
        made_parts[part.name] = replace(one, left_out=left_out)
    return Found(SETUP, made_parts)


@pytest.fixture(scope="module")
def made_report(tmp_path_factory) -> Report:
    return report(found(tmp_path_factory.mktemp("table1")))


def test_every_method_of_the_toolkit_and_of_the_paper_has_a_row():
    names = [name for _, name in rows_in_order(Setup())]
    assert len(names) == len(set(names))
    assert names[0] == "plain"
    assert names[-3:] == ["heal", "heal one-sided", "guard"]
    assert set(available()) <= set(names)
    assert {name.lower() for name in names} >= set(printed("table1", "methods"))
    assert methods(Setup())["heal one-sided"] == HEAL(alpha=0.5, drift="language")
    assert methods(Setup(model="llava"))["heal one-sided"] == HEAL(drift="language")


def test_methods_that_answer_one_by_one_get_fewer_images_of_the_miniature_world(tmp_path):
    every, slow = groups(SETUP)
    assert list(every.methods) == ["plain", "vcd", "heal"]
    assert list(slow.methods) == ["plain", "opera", "heal"]
    assert slow.setup.samples == IMAGES // FEWER
    assert [part.name for part in parts(SETUP)] == [
        *("pope", "chair", "mme"),
        *("pope, one by one", "chair, one by one", "mme, one by one"),
    ]
    (only,) = groups(Setup(data=tmp_path, distributions=("official",), methods=SETUP.methods))
    assert list(only.methods) == ["plain", "vcd", "opera", "heal"]


def test_rows(made_report):
    rows = made.cells(made_report, "method")
    assert value(rows["plain"], "CHAIR_s ↓").value == pytest.approx(60)
    assert value(rows["heal"], "CHAIR_s ↓").value == pytest.approx(10)
    assert value(rows["heal"], "CHAIR_s ↓").paper == "36.7 ± 0.4"
    assert value(rows["vcd"], "CHAIR_i ↓").paper == 14.9
    assert value(rows["vcd"], "CHAIR_i ↓").expected == "↓"
    assert value(rows["beam"], "CHAIR_i ↓").expected == ""
    assert rows["plain"]["images"] == IMAGES
    assert rows["opera"]["images"] == IMAGES // FEWER
    assert value(rows["heal"], "MME total").value > value(rows["plain"], "MME total").value
    labels = {row.labels["method"]: row.labels["note"] for row in made_report.tables[0].rows}
    assert labels["HALC"] == ABSENT
    assert labels["beam"] == "not measured"
    assert labels["vcd"] == "same answers as plain on pope, chair, mme"
    assert labels["heal"] == ""
    assert str(value(rows["HALC"], "CHAIR_i ↓")) == "–"
    assert rows["VISTA"]["CHAIR_i ↓"] is None


def test_differences(made_report):
    rows = made.cells(made_report, "method", table=1)
    assert list(rows) == ["vcd", "opera", "heal"]
    chair = value(rows["heal"], "CHAIR_s ↓")
    assert chair.value == pytest.approx(-50)
    assert chair.high < 0
    assert chair.paper == pytest.approx(36.7 - 51.0)
    assert chair.expected == "↓"
    assert value(rows["heal"], "CHAIR_i at equal recall").value < 0


def test_verdicts(made_report):
    said = {verdict.claim: verdict for verdict in made_report.verdicts}
    assert said["heal: lower CHAIR_i than plain (natural)"].outcome == Outcome.CONFIRMED
    assert said["heal: lower CHAIR_i than plain (natural)"].text.endswith("paper -4.50")
    assert said["heal: lower CHAIR_i at equal recall than plain (natural)"].outcome == Outcome.CONFIRMED
    assert said["heal: higher POPE F1 than plain (natural)"].outcome == Outcome.CONFIRMED
    rivals = said["heal: lower CHAIR_i than every rival (natural)"]
    assert rivals.outcome == Outcome.NOT_CONFIRMED
    assert "better than 1 of 2 (vcd), worse than 0, no clear difference to 0" in rivals.text
    assert "too few images for 1 (opera)" in rivals.text
    assert rivals.text.endswith("paper: better than 2 of 2 of them")


def test_a_method_that_does_not_suit_the_model_is_left_out_with_the_reason(tmp_path):
    made_report = report(found(tmp_path, vcd="the model has no pixels"))
    labels = {row.labels["method"]: row.labels["note"] for row in made_report.tables[0].rows}
    assert labels["vcd"] == "left out: the model has no pixels"
    assert value(made.cells(made_report, "method")["vcd"], "CHAIR_i ↓").paper == 14.9
    assert "vcd is left out: the model has no pixels" in made_report.notes
    assert not any("vcd" in verdict.text for verdict in made_report.verdicts)


def test_the_guard_is_judged_by_its_captions_only():
    tasks = {name: SETUP.task(name, "natural") for name in ("pope", "chair", "mme")}
    answered = {name: Answered(made.evaluated(), name, task) for name, task in tasks.items()}
    standing = Standing(answered, ["heal", "guard"], [], {}, ["guard"])
    assert {claim.benchmark for claim in standing.claims("guard")} == {"chair"}
    assert {claim.benchmark for claim in standing.claims("heal")} == {"chair", "pope", "mme"}


def test_the_figure_has_a_line_for_each_method(made_report):
    figure = made_report.figures["natural"]()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["vcd", "opera", "heal"]
    assert len(figure.axes) == 4


def test_only_the_benchmarks_that_are_there_are_measured(tmp_path):
    setup = Setup(data=tmp_path, distributions=("official",))
    assert parts(setup) == []
    assert "objects.json is missing" in STUDY.missing(setup)
    assert not STUDY.missing(Setup(samples=1))


def test_given_forms_are_ours():
    given = Setup(samples=4, methods={"plain": None, "g": Guard(action="retry", threshold=0.4, risk="logprob")})
    assert list(methods(given)) == ["plain", "g"]
    assert [list(group.methods) for group in groups(given)] == [["plain"], ["plain", "g"]]
