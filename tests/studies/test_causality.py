"""Changed answers by hand, and the study on hand-made answers."""

import math
from pathlib import Path
from typing import Any

import pytest

from heal.bench.tasks.base import File, Sample
from heal.methods import HEAL
from heal.studies.causality import (
    ABSENT,
    ANSWERS,
    OBJECTS,
    PLAIN,
    RANDOM,
    SYNERGY,
    Changed,
    changed,
    name,
    parts,
    report,
    settings,
)
from heal.studies.changes import changes, labelled, of_objects, of_verdict, rates
from heal.studies.parts import Evaluation
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from heal.world.categories import NAMES
from tests.studies.made_answers import captions, unscored, value, wrong_yes

SETUP = Setup(samples=20)
LOW, HIGH = name(0.1, SYNERGY), name(0.9, SYNERGY)


def asked(id, unit, **truth):
    return Sample(id, unit, "?", truth, File(Path("none.jpg")))


def test_changed_verdicts_by_hand():
    samples = [asked("a", "1", label="no"), asked("b", "1", label="yes"), asked("c", "2", label="no")]
    before: dict[str, dict[str, Any]] = {"a": {"answer": "no"}, "b": {"answer": "no"}, "c": {"answer": None}}
    after = {"a": {"answer": "yes"}, "b": {"answer": "yes"}, "c": {"answer": "yes"}}
    found = changes(samples, before, after, of_verdict)
    assert found["1"] == {"correct": 1, "became": 1, "hallucinated": 1, "corrected": 1, "lost": 1}
    assert found["2"] == {"correct": 0, "became": 0, "hallucinated": 1, "corrected": 0, "lost": 0}
    assert list(changes(samples, before, {"c": after["c"]}, of_verdict)) == ["2"]
    assert [s.id for s in labelled(samples, "no")] == ["a", "c"]
    assert labelled(samples, None) == samples


def test_changed_objects_by_hand():
    sample = asked("a", "1", objects=["boat", "car", "dog"])
    before = {"mentions": ["boat", "car", "cow", "cow", "kite", "boat"]}
    after = {"mentions": ["boat", "cow", "cup", "bird", "cup"]}
    assert of_objects(sample, before, after) == {
        "correct": 2,  # boat, car
        "became": 2,  # cup, bird
        "hallucinated": 2,  # cow, kite
        "corrected": 1,  # kite
        "lost": 1,  # car
    }


def test_rates():
    found = rates({"correct": 4.0, "became": 1.0, "hallucinated": 0.0, "corrected": 0.0, "lost": 2.0})
    assert (found["became"], found["lost"]) == (25, 50)
    assert math.isnan(float(found["corrected"]))


def test_settings():
    methods = settings(Setup(methods={"x": HEAL(interval=5, drift="language")}))
    assert list(methods)[:3] == [PLAIN, "α = 0.1, synergy heads", "α = 0.1, random heads"]
    assert methods[name(0.8, RANDOM)] == HEAL(alpha=0.8, interval=5, heads="permuted")
    assert len(methods) == 13
    (part,) = parts(SETUP)
    assert isinstance(part, Evaluation)
    assert list(part.tasks) == ["pope natural", "mme natural", "chair natural"]


@pytest.fixture(scope="module")
def found():
    """Low α affirms all absent objects and names others; high α corrects the errors of plain. Random heads and other
    α change nothing."""
    mme = {s.id: str(s.truth["label"]) for s in SETUP.task("mme", "natural").samples()}
    objects = [sample.truth["objects"] for sample in SETUP.captions("natural")]
    nowhere = [f"A {name}." for name in NAMES if not any(name in own for own in objects)]
    named = {LOW: nowhere[:10], HIGH: []}
    pope = {LOW: 10_000, HIGH: 0}
    answers = {
        "pope natural": {m: wrong_yes(SETUP, pope.get(m, 20)) for m in settings(SETUP)},
        "mme natural": dict.fromkeys(settings(SETUP), mme),
        "chair natural": {
            m: captions(
                SETUP, *(" ".join([*named.get(m, nowhere[:5]), *(f"A {o}." for o in own)]) for own in objects)
            )
            for m in settings(SETUP)
        },
    }
    return Found(SETUP, {ANSWERS: unscored(SETUP.tasks("pope", "mme", "chair"), answers)})


def test_changes_from_plain(found):
    by_kind = changed(found, "natural")
    absent, objects = by_kind[ABSENT], by_kind[OBJECTS]
    assert absent.numbers["hallucinated"] == 20
    assert absent.rate(LOW, "became").value == 100
    assert absent.rate(LOW, "corrected").value == 0
    assert absent.rate(HIGH, "corrected").value == 100
    assert absent.difference(name(0.9, RANDOM), HIGH, "corrected").value == 100
    correct = sum(len(sample.truth["objects"]) for sample in SETUP.captions("natural"))
    assert objects.numbers == {"correct": correct, "hallucinated": 5 * 20}
    assert objects.rate(LOW, "became").value == 100 * 5 * 20 / correct
    assert objects.rate(HIGH, "corrected").value == 100
    assert objects.rate(HIGH, "lost").value == 0
    assert objects.difference(HIGH, LOW, "became").low > 50


def test_report(found):
    made = report(found)
    table, strength = made.tables
    assert len(table.rows) == 4 * 6
    (row,) = [r.values for r in table.rows if r.labels["answers"] == ABSENT and r.labels["α"] == "0.1"]
    assert value(row, "became hallucinated %, difference").expected == "↑"
    assert value(row, "corrected %, difference").expected == ""
    assert row["hallucinated"] == 20
    assert "correct objects lost %" not in row
    mme = next(r.values for r in table.rows if r.labels["answers"] == "MME")
    assert mme["hallucinated"] == 0
    assert not value(mme, "corrected %").has_interval
    assert len(strength.rows) == 12
    assert value(strength.rows[0].values, "heads per step").value == 4
    assert value(strength.rows[0].values, "mean |β − 1|").value == 0.5
    assert math.isclose(value(strength.rows[0].values, "mean |γ − 1|").value, 0)
    outcomes = {verdict.claim: verdict.outcome for verdict in made.verdicts}
    claim = "at α = 0.1 more answers become hallucinated than with random heads (POPE, absent objects, natural)"
    assert outcomes[claim] == Outcome.CONFIRMED
    claim = "at α = 0.9 more answers are corrected than with random heads (MME, natural)"
    assert outcomes[claim] == Outcome.TOO_FEW
    claim = "more are corrected at α = 0.9 than at 0.1 (objects in captions, natural)"
    assert outcomes[claim] == Outcome.CONFIRMED
    assert len(made.verdicts) == 12
    assert len(made.figures["natural"]().axes) == 8


def test_a_rate_of_too_few_answers_has_no_interval():
    counts = {"a": {"correct": 20.0, "became": 1.0, "hallucinated": 19.0, "corrected": 1.0, "lost": 1.0}}
    own = Changed({"x": counts})
    assert own.rate("x", "became").has_interval
    assert not own.rate("x", "corrected").has_interval
    assert own.rate("x", "corrected").n == 19


def test_no_verdict_on_few_images():
    setup = Setup(samples=3)
    methods = list(settings(setup))
    answers = {
        "pope natural": {m: wrong_yes(setup, 20) for m in methods},
        "mme natural": {m: {s.id: "yes" for s in setup.task("mme", "natural").samples()} for m in methods},
        "chair natural": {m: captions(setup, "A boat.", "A dog.", "A cow.") for m in methods},
    }
    made = report(Found(setup, {ANSWERS: unscored(setup.tasks("pope", "mme", "chair"), answers)}))
    assert {verdict.outcome for verdict in made.verdicts} == {Outcome.TOO_FEW}
    assert any("too few images (3" in verdict.text for verdict in made.verdicts)
