"""Answers without a hallucination: every study says that there is nothing to compare, and averages nothing."""

import pytest

from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Task
from heal.studies import alpha, heads_by_token, interval, table2
from heal.studies.answered import Answered
from heal.studies.parts import Evaluated, Evaluation, Measured, Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome, Study, Value
from heal.studies.verdicts import compared, enough
from tests.studies.made import S, name, traced
from tests.studies.made_answers import evaluated

pytestmark = pytest.mark.slow

IMAGES = 20
SETUP = Setup(samples=IMAGES)


def correct(task: Task) -> dict[str, str]:
    return {s.id: s.truth["label"].capitalize() if "label" in s.truth else named(s, 1) for s in task.samples()}


def named(sample, right, wrong=0):
    there = sample.truth["objects"][:right]
    absent = [n for n in ("zebra", "giraffe", "sheep", "cow") if n not in sample.truth["objects"]]
    return " ".join(f"A {word}." for word in (*there, *absent[:wrong]))


def measured(study: Study, path) -> Found:
    """Every method answers everything correctly, in the same time."""
    found = Found(SETUP, {}, {"name": "embedded"})
    parts: dict[str, Evaluated | Records] = {}
    for part in study.parts(SETUP):
        if isinstance(part, Evaluation):
            texts = {name: dict.fromkeys(part.methods, correct(task)) for name, task in part.tasks.items()}
            parts[part.name] = evaluated(path / part.name, part.tasks, texts)
        else:
            one = {"ms": 1.0, "first_ms": 1.0, "memory": 1.0}
            times = dict.fromkeys(part.options["methods"], one)
            parts[part.name] = Records.of([Measured(s.id, {"times": times, "skipped": {}}) for s in part.samples])
    found = Found(SETUP, parts, found.model)
    for part in study.follow_up(found):
        scores = {method: [2.0, 4.0] for method in alpha.settings(SETUP)}
        parts[part.name] = Records.of([Measured(s.id, scores) for s in SETUP.captions("natural")])
    return Found(SETUP, parts, found.model)


@pytest.mark.parametrize("study", [interval.STUDY, alpha.STUDY, table2.STUDY], ids=lambda study: study.name)
def test_answers_without_a_mistake_have_no_verdict(study, tmp_path):
    verdicts = study.report(measured(study, tmp_path)).verdicts
    about = [v for v in verdicts if any(word in v.claim for word in ("CHAIR", "F1", "POPE"))]
    assert len(about) >= 3
    for verdict in about:
        assert verdict.outcome == Outcome.TOO_FEW, verdict.text
        what = "wrong answers" if "POPE" in verdict.claim else "hallucinated objects"
        assert f"too few {what} (0; an interval needs 20)" in verdict.text


def test_names_without_a_hallucinated_one_have_no_verdict():
    records = [traced(f"{i}", [[[S, S]]] * 3, names=[name(1), name(2)]) for i in range(30)]
    found = Found(SETUP, {"traces natural": Records.of(records)})
    verdicts = heads_by_token.STUDY.report(found).verdicts
    assert {v.outcome for v in verdicts} == {Outcome.TOO_FEW}
    assert "too few hallucinated names (0; an interval needs 20)" in verdicts[0].text


@pytest.mark.parametrize(
    ("images", "wrong", "what", "n", "outcome"),
    [
        (20, 20, "", 20, Outcome.CONFIRMED),
        (20, 19, "hallucinated objects", 19, Outcome.TOO_FEW),
        (19, 19, "images", 19, Outcome.TOO_FEW),
    ],
)
def test_both_images_and_mistakes_are_needed(tmp_path, images, wrong, what, n, outcome):
    setup = Setup(samples=images)
    task = setup.task("chair", "natural")
    texts = {
        "plain": {s.id: named(s, 1, wrong=int(i < wrong)) for i, s in enumerate(task.samples())},
        "better": correct(task),
    }
    answered = Answered(
        evaluated(tmp_path / "run", {"chair natural": task}, {"chair natural": texts}), "chair natural", task
    )
    assert answered.errors("plain") == ("hallucinated objects", wrong)
    found = answered.differences("plain", "better")["chair_i"]
    verdict = compared("fewer", found, answered, ("plain", "better"), expected="↓")
    assert verdict.outcome == outcome
    assert f"too few {what} ({n}; " in verdict.text or outcome is Outcome.CONFIRMED


def test_values_without_a_number_behind_them_keep_their_interval():
    value = Value.of(Interval(1.0, 0.5, 1.5))
    assert enough(value) == value
    assert not enough(Value.of(Interval(1.0, 0.5, 1.5), n=19)).has_interval
