"""The study of the guard on hand-made sentences and answers."""

import pytest

from heal import VLM
from heal.bench.tasks.task_views import FirstUnits
from heal.methods.guard import Guard
from heal.studies.comparison import published
from heal.studies.guard import STUDY, report
from heal.studies.guard_parts import (
    BY_CHANCE,
    BY_LOGPROB,
    CAPTIONS,
    GUARD,
    OTHERS,
    PLAIN,
    QUESTIONS,
    RETRY,
    choosing,
    follow_up,
    judging,
    parts,
    settings,
    thresholds,
)
from heal.studies.parts import Evaluation, Measured, Measurement, Records
from heal.studies.sentence_risks import DETECTOR, LOGPROB, RANDOM, Described, chosen_threshold, sentence_risks
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from tests.studies.made_answers import captions, evaluated, value, wrong_yes

SETUP = Setup(samples=3)
OBJECTS = [frozenset(sample.truth["objects"]) for sample in choosing(SETUP, "natural").samples()]


def sentence(text, risk, surprise=None):
    return {"text": text, DETECTOR: risk, LOGPROB: risk if surprise is None else surprise}


def described(*every):
    """One description for each image where thresholds are chosen: lists of sentences."""
    task = choosing(SETUP, "natural")
    return Described(task, {sample.id: own for sample, own in zip(task.samples(), every, strict=True)})


def good(number, count=1):
    return sorted(OBJECTS[number])[:count]


def bad(number):
    return next(name for name in ("dog", "boat", "train", "kite") if name not in OBJECTS[number])


def made():
    """Every image has a correct sentence of risk 0.1, and a hallucinated one of risk 0.5, 0.7 and 0.9."""
    return described(
        *(
            [sentence(f"A {good(i)[0]}.", 0.1), sentence(f"A {bad(i)}.", risk), sentence("It is nice.", None)]
            for i, risk in enumerate((0.5, 0.7, 0.9))
        )
    )


def test_kept_sentences():
    own = made()
    kept = list(own.kept(DETECTOR, 0.6).values())
    assert kept[0] == f"A {good(0)[0]}. A {bad(0)}. It is nice."
    assert kept[1] == f"A {good(1)[0]}. It is nice."
    assert own.share_dropped(DETECTOR, 0.6) == pytest.approx(2 / 6)
    assert own.figures(own.plain())["chair_i"] == pytest.approx(50)
    assert own.figures(own.kept(DETECTOR, 0.6))["chair_i"] == pytest.approx(25)
    early = described(*([sentence(f"A {bad(i)}.", 0.9), sentence(f"A {good(i)[0]}.", 0.1)] for i in range(3)))
    gain = early.gain(early.kept(DETECTOR, 0.4))
    assert gain.highest.value == pytest.approx(-50)
    assert gain.highest_recall == pytest.approx(30)


def test_the_threshold_is_the_best_that_keeps_the_recall():
    own = made()
    assert chosen_threshold([own], DETECTOR, 1.5) == pytest.approx(0.48)  # the highest below 0.5
    names = good(0)
    risky = described([sentence(f"A {names[0]}. A {bad(0)}.", 0.5)], [], [])
    assert chosen_threshold([risky], DETECTOR, 1.5) == 1  # the least risky sentence is kept, nothing improves


def test_a_threshold_that_costs_recall_is_not_chosen():
    own = described(
        *([sentence(f"A {good(i, 2)[1]}. A {bad(i)}.", 0.5), sentence(f"A {good(i)[0]}.", 0.1)] for i in range(3))
    )
    assert chosen_threshold([own], DETECTOR, 1.5) == 1
    assert chosen_threshold([own], DETECTOR, 100.0) == pytest.approx(0.48)


def test_random_risks_depend_on_the_seed_only():
    own = made()
    assert own.risks(RANDOM) == made().risks(RANDOM)
    assert [row[2] for row in own.risks(RANDOM).values()] == [None] * 3
    assert own.risks(RANDOM) != Described(own.task, own.sentences, 1).risks(RANDOM)


def test_thresholds_are_chosen_on_other_scenes():
    mine = {sample.id for sample in choosing(SETUP, "natural").samples()}
    assert not mine & {sample.id for sample in judging(SETUP, "natural").samples()}
    assert all("validation-1-" in id for id in mine)


def test_official_data_is_divided(monkeypatch):
    whole = SETUP.task("chair", "natural")
    official = Setup(samples=3, data=None)
    object.__setattr__(official, "data", whole)
    monkeypatch.setattr(Setup, "task", lambda self, benchmark, distribution: whole)
    first, second = (pick(official, "official").samples() for pick in (choosing, judging))
    assert list(first) == list(FirstUnits(whole, 1).samples())
    assert [*first, *second] == list(whole.samples())


def found(tmp_path):
    measured = [Measured(id, {"unit": id, "sentences": own}) for id, own in made().sentences.items()]
    judged = [
        Measured(sample.id, {"unit": sample.unit, "sentences": [sentence("A dog.", 0.9)]})
        for sample in judging(SETUP, "natural").samples()
    ]
    first = Found(SETUP, {"choosing natural": Records.of(measured), "judging natural": Records.of(judged)})
    return first, tmp_path


def test_follow_up(tmp_path):
    first, _ = found(tmp_path)
    known = thresholds(first)
    assert known == {DETECTOR: 0.48, LOGPROB: 0.48, RANDOM: 0.5}
    answers, questions, others = follow_up(first)
    assert isinstance(answers, Evaluation)
    assert isinstance(questions, Evaluation)
    assert isinstance(others, Evaluation)
    assert answers.methods[GUARD] == Guard(threshold=0.48)
    assert answers.methods[RETRY] == Guard(threshold=0.48, action="retry")
    assert answers.methods[BY_LOGPROB] == Guard(threshold=0.48, risk="logprob", words="world")
    assert answers.methods[BY_CHANCE] == Guard(threshold=0.5, risk="random", words="world")
    assert list(questions.tasks) == ["pope natural", "mme natural"]
    assert others.methods == published()
    assert [part.name for part in parts(SETUP)] == ["choosing natural", "judging natural"]


@pytest.mark.usefixtures("few_are_enough")
def test_report(tmp_path):
    first, _ = found(tmp_path)
    methods = list(settings(SETUP, thresholds(first)))
    worse, better = ("A boat. A dog.", "A dog. A person.", "A cow. A dog."), ("A boat.", "A person.", "A cow.")
    chair = {name: captions(SETUP, *(better if name in (GUARD, RETRY) else worse)) for name in methods}
    pope = {PLAIN: wrong_yes(SETUP, 1), GUARD: wrong_yes(SETUP, 1)}
    answered = {
        CAPTIONS: evaluated(tmp_path / "a", SETUP.tasks("chair"), {"chair natural": chair}),
        QUESTIONS: evaluated(tmp_path / "b", SETUP.tasks("pope"), {"pope natural": pope}),
        OTHERS: evaluated(
            tmp_path / "c", SETUP.tasks("chair"), {"chair natural": dict.fromkeys(published(), chair[PLAIN])}
        ),
    }
    done = report(Found(SETUP, {**first.parts, **answered}))
    rows = {row.labels["method"]: row.values for row in done.tables[0].rows}
    assert set(methods) <= set(rows)
    assert value(rows[GUARD], "CHAIR_i ↓").value == 0
    assert value(rows[PLAIN], "CHAIR_i ↓").value > 0
    by_claim = {verdict.claim: verdict for verdict in done.verdicts}
    assert by_claim["the guard lowers CHAIR_i at equal recall (natural)"].outcome in (
        Outcome.CONFIRMED,
        Outcome.NOT_CONFIRMED,
    )
    assert by_claim["pope natural unchanged"].outcome == Outcome.CONSISTENT
    assert by_claim["difference of CHAIR_s between guard and plain (natural)"].text.count("-100.0") >= 1
    curve = done.tables[1].rows
    assert {row.labels["risk"] for row in curve} == {DETECTOR, LOGPROB, RANDOM}
    figure = done.figures["natural"]()
    assert "recall" in figure.axes[0].get_xlabel()


def test_changed_answers_to_questions_are_told(tmp_path):
    from heal.studies.guard import _unchanged

    pope = {PLAIN: wrong_yes(SETUP, 1), GUARD: wrong_yes(SETUP, 3)}
    answered = evaluated(tmp_path / "b", SETUP.tasks("pope"), {"pope natural": pope})
    (verdict,) = _unchanged(Found(SETUP, {QUESTIONS: answered}))
    assert verdict.outcome == Outcome.CONTRADICTED
    assert "changes 2 of" in verdict.text


def test_a_model_without_a_detector():
    broken = Records.of([Measured("a", {"error": "ConfigError: no detector: run heal detect fit"})])
    one = Found(SETUP, {"choosing natural": broken, "judging natural": broken})
    assert follow_up(one) == []
    (verdict,) = report(one).verdicts
    assert verdict.outcome == Outcome.TOO_FEW
    assert "heal detect fit" in verdict.text


@pytest.mark.slow
def test_dropping_afterwards_is_what_the_guard_does():
    """The descriptions at a threshold are those of the guard itself, for every kind of risk that has no draws."""
    vlm, setup = VLM.embedded(), Setup(samples=2, distributions=("counter",))
    task = setup.task("chair", "counter")
    measuring = sentence_risks("x", task, setup)
    own = Described.of(task, measuring.measure(vlm, task.samples()))
    for kind, threshold in ((DETECTOR, 0.2), (LOGPROB, 0.5)):
        method = Guard(risk=kind, threshold=threshold, words="world")  # type: ignore[arg-type]
        answers = vlm.generate(
            [s.image() for s in task.samples()],
            [s.prompt for s in task.samples()],
            method=method,
            max_new_tokens=128,
            do_sample=False,
        )
        kept = own.kept(kind, threshold)
        assert [" ".join(answer.text.split()) for answer in answers] == list(kept.values())
        assert own.share_dropped(kind, threshold) > 0


def test_study():
    assert STUDY.benchmarks == ("chair", "pope", "mme")


def test_a_model_without_a_detector_has_no_verdict():
    vlm = VLM.random()
    measurements = [part for part in parts(SETUP) if isinstance(part, Measurement)]
    records = {part.name: Records.of(part.measure(vlm, part.samples)) for part in measurements}
    nothing = Found(SETUP, records)
    assert follow_up(nothing) == []
    (verdict,) = report(nothing).verdicts
    assert verdict.outcome == Outcome.TOO_FEW
    assert "this model has no detector" in verdict.text
