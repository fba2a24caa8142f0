"""The study of α chosen elsewhere, on hand-made shares and answers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from heal import VLM
from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import Interval
from heal.errors import ConfigError
from heal.methods import HEAL
from heal.methods.equilibrium import Equilibrium
from heal.studies.parts import Evaluation, Measured, Measurement, Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from heal.studies.transfer import (
    PLAIN,
    STUDY,
    TO_OWN,
    TO_PLAIN,
    conclusion,
    follow_up,
    method_name,
    of_the_paper,
    parts,
    report,
)
from heal.studies.transfer_choice import (
    CAPTIONS,
    QUESTIONS,
    Place,
    at_answers,
    at_names,
    choice,
    choosing,
    measured,
    part_name,
    using,
)
from tests.studies.made import L, S, cells, name, traced
from tests.studies.made_answers import evaluated, value

SETUP = Setup(samples=25, batch_size=8)
ON_CAPTIONS, ON_POPE = Place(CAPTIONS, "natural"), Place(QUESTIONS, "natural")
OWN, OTHER = method_name(0.6), method_name(0.75)
"""The α of captions and that of POPE."""
NONE = "no difference is seen, and a loss of up to {} points is not excluded"


def captioned(unit: str, visual: Sequence[float], step: int = 1) -> Measured:
    """A description with one correct name, whose synergy heads have these visual shares."""
    shares = np.broadcast_to(np.array(visual)[None, None], (3, 1, len(visual)))
    types = np.full(shares.shape, S)
    return traced(unit, types, shares, 1 - shares, names=[name(step), name(2, correct=False)])


def asked(unit: str, visual: Sequence[float], correct: bool = True) -> Measured:
    share = np.array([visual], np.float32)
    types = np.full(share.shape, int(HeadType.SYNERGY), np.uint8)
    return Measured(unit, {"unit": unit, "correct": correct}, {"alpha_vis": share, "types": types})


def chosen(captions: int = 30, questions: int = 30) -> dict[str, Records]:
    """0.6 for captions and 0.75 for POPE."""
    return {
        part_name(ON_CAPTIONS): Records.of([captioned(f"{i}", (0.5, 0.7)) for i in range(captions)]),
        part_name(ON_POPE): Records.of([asked(f"{i}", (0.75, 0.75)) for i in range(questions)]),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The plain model hallucinates a dog in every caption; α = 0.75 does so in 22 of 25, every other α never. On
    POPE every α has the same 25 wrong answers, and the plain model 10 more."""
    tasks = SETUP.tasks("chair", "pope")
    methods = [PLAIN, OWN, OTHER, *{source.method for source in of_the_paper()}]
    wrong = dict.fromkeys(methods, 0) | {PLAIN: 25, OTHER: 22}
    captions = {m: {s.id: caption(s, i < wrong[m]) for i, s in enumerate(samples("chair"))} for m in methods}
    questions = {m: answers(35 if m == PLAIN else 25) for m in methods}
    made = evaluated(
        tmp_path_factory.mktemp("transfer") / "run", tasks, {"chair natural": captions, "pope natural": questions}
    )
    return Found(SETUP, {**chosen(), "answers": made})


@pytest.fixture(scope="module")
def made(found):
    return report(found)


def samples(benchmark):
    return SETUP.task(benchmark, "natural").samples()


def caption(sample, wrong):
    """One object of the image, and one that is not there."""
    there = sorted(sample.truth["objects"])[0]
    other = next(n for n in ("dog", "cat", "boat", "kite") if n not in sample.truth["objects"])
    return f"A {other}. A {there}." if wrong else f"A {there}."


def answers(wrong):
    flipped = {"yes": "No", "no": "Yes"}
    return {
        s.id: flipped[s.truth["label"]] if i < wrong else s.truth["label"].capitalize()
        for i, s in enumerate(samples("pope"))
    }


# ── the choice ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_rule_is_that_of_heal_calibrate():
    shares = np.array([[0.2, 0.4, 0.9], [0.3, np.nan, 0.8]], np.float32)
    types = np.array([[S, S, L], [S, S, S]], np.uint8)
    records = [
        Measured(f"{i}", {"unit": "a", "correct": True}, {"alpha_vis": shares[i], "types": types[i]}) for i in (0, 1)
    ]
    wrong = Measured("w", {"unit": "b", "correct": False}, {"alpha_vis": shares[0], "types": types[0]})
    got = choice(ON_POPE, at_answers(Records.of([*records, wrong])), 0)
    assert got is not None
    assert got.share.value == pytest.approx(Equilibrium.of(shares[:, None], types[:, None]).mean)
    assert [got.share.value, got.tokens, got.alpha] == pytest.approx([1.7 / 4, 2, 0.43])
    assert got.too_few


def test_only_correct_names_count_with_the_types_in_force():
    types = np.array([[[S, S]], [[L, S]], [[S, S]], [[S, S]]])
    visual = np.array([0.1, 0.2, 0.3, 0.4])[:, None, None] * np.ones((4, 1, 2))
    answer = traced("a", types, visual, 1 - visual, names=[name(2), name(3, correct=False)])
    ((unit, at_every_step),) = at_names(Records.of([answer]), 1)
    assert (unit, at_every_step.tolist()) == ("a", pytest.approx([0.3]))
    ((_, of_the_first),) = at_names(Records.of([answer]), 10)
    assert of_the_first.tolist() == pytest.approx([0.3, 0.3])


def test_without_correct_tokens_there_is_no_choice():
    assert choice(ON_POPE, at_answers(Records.of([asked("a", (0.5,), correct=False)])), 0) is None
    empty = Measured(
        "e", {"unit": "e", "correct": True}, {"alpha_vis": np.full((1, 1), np.nan), "types": np.full((1, 1), S)}
    )
    assert choice(ON_POPE, at_answers(Records.of([empty])), 0) is None


def test_alpha_stays_a_share():
    extreme = choice(ON_POPE, [("a", np.array([0.999999]))], 0)
    assert extreme is not None
    assert extreme.alpha == 0.99


@pytest.mark.parametrize("split", ["test", "validation"])
@pytest.mark.parametrize("benchmark", [CAPTIONS, QUESTIONS])
def test_alpha_is_never_chosen_on_the_images_that_it_is_used_on(split, benchmark):
    setup = replace(SETUP, samples=6, split=split)
    on = choosing(setup, Place(benchmark, "natural"))
    off = using(setup)[f"{benchmark} natural"]
    pictures = {s.image().tobytes() for s in on.samples()}
    assert pictures
    assert not pictures & {s.image().tobytes() for s in off.samples()}
    own = {s.unit for s in setup.task(benchmark, "natural").samples()}
    assert {s.unit for s in off.samples()} <= own
    assert len(own) == 6


def test_one_image_has_no_halves():
    with pytest.raises(ConfigError, match="at least 2 images"):
        parts(replace(SETUP, samples=1, split="validation"))


def test_questions_are_measured_at_their_first_token():
    setup = Setup(samples=2, batch_size=2)
    part = measured(setup, ON_POPE)
    assert len({s.unit for s in part.samples[:2]}) == 2
    some = part.samples[:2]
    records = part.measure(VLM.random(), some)
    assert [r.id for r in records] == [s.id for s in some]
    for record in records:
        assert record.arrays["alpha_vis"].ndim == record.arrays["types"].ndim == 2
        assert set(record.facts) == {"unit", "correct"}


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_paper_has_three_values():
    assert [source.alpha for source in of_the_paper()] == [0.43, 0.5, 0.4]


def test_parts(found):
    first, second, papers = parts(SETUP)
    assert isinstance(first, Measurement)
    assert isinstance(second, Measurement)
    assert isinstance(papers, Evaluation)
    assert {s.id for s in first.samples} != {s.id for s in samples("chair")} or first.samples[0] != samples("chair")[
        0
    ]
    assert list(papers.methods) == [PLAIN, "α = 0.4", "α = 0.43", "α = 0.5"]
    (every,) = follow_up(found)
    assert isinstance(every, Evaluation)
    assert list(every.methods) == [PLAIN, "α = 0.4", "α = 0.43", "α = 0.5", OWN, OTHER]
    assert every.methods[OWN] == HEAL(alpha=0.6, drift="language")
    assert set(every.tasks) == {"chair natural", "pope natural"}
    given = replace(SETUP, methods={"x": HEAL(alpha=0.9, interval=5)})
    (_, _, papers) = parts(given)
    assert isinstance(papers, Evaluation)
    assert papers.methods["α = 0.5"] == HEAL(alpha=0.5, interval=5)


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


def test_report(made):
    rows = cells(made, "used on", "chosen on")
    assert len(rows) == 2 * (1 + 2 + 3)
    assert value(rows["captions natural", PLAIN], "CHAIR_i ↓").value == 50
    assert value(rows["captions natural", "captions natural"], "CHAIR_i ↓").value == 0
    other = rows["captions natural", "POPE natural"]
    assert value(other, "CHAIR_i ↓").value == pytest.approx(100 * 22 / 47)
    lost = value(other, TO_OWN)
    assert lost.low > 0
    assert lost.expected == "="
    assert rows["captions natural", "captions natural"][TO_OWN] == "–"
    same = value(rows["POPE natural", "captions natural"], TO_OWN)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    better = value(rows["POPE natural", "POPE natural"], TO_PLAIN)
    assert better.value > 0
    matrix = cells(made, "chosen on", table=1)
    assert value(matrix["POPE natural"], f"captions natural, CHAIR_i at equal recall, {TO_OWN}") == lost
    choice_rows = cells(made, "task", table=2)
    assert value(choice_rows["POPE natural"], "visual share").value == pytest.approx(0.75)
    assert choice_rows["captions natural"]["α"] == "0.6"
    assert choice_rows["captions natural"]["correct tokens"] == 30


def test_verdicts(made):
    verdicts = {v.claim: v for v in made.verdicts}
    worse = verdicts["α of POPE natural on captions natural"]
    assert worse.outcome == Outcome.CONTRADICTED
    assert "with the α of POPE natural (0.75) instead of its own (0.6): " in worse.text
    assert worse.text.endswith("worse than its own")
    equal = verdicts["α of captions natural on POPE natural"]
    assert equal.outcome == Outcome.CONSISTENT
    assert "F1 on POPE natural" in equal.text
    assert equal.text.endswith("its own (0.75): 0.00 (0.00 to 0.00); " + NONE.format("0.00"))
    few = verdicts["α of the paper's lowest CHAIR_s, LLaVA-1.5-7B on captions natural"]
    assert few.outcome == Outcome.TOO_FEW
    assert "too few hallucinated objects (0; an interval needs 20)" in few.text
    shares = verdicts["visual share of synergy heads at correct tokens"]
    assert shares.outcome == Outcome.MEASURED
    assert "0.600 (0.600 to 0.600) on captions natural" in shares.text
    own = verdicts["its own α on captions natural"]
    assert own.outcome == Outcome.MEASURED
    assert "no effect" not in own.text


def test_an_equal_alpha_is_said_to_be_the_same(found):
    same = {**found.parts, part_name(ON_POPE): Records.of([asked(f"{i}", (0.6, 0.6)) for i in range(30)])}
    made = report(replace(found, parts=same))
    verdicts = {v.claim: v for v in made.verdicts}
    verdict = verdicts["α of POPE natural on captions natural"]
    assert (verdict.outcome, "it is the same α (0.6)" in verdict.text) == (Outcome.MEASURED, True)
    assert cells(made, "used on", "chosen on")["captions natural", "POPE natural"][TO_OWN] == "same α"


def test_an_alpha_of_too_few_tokens_has_no_verdict(found):
    few = {**found.parts, **chosen(captions=0, questions=19)}
    verdicts = {v.claim: v for v in report(replace(found, parts=few)).verdicts}
    shares = verdicts["visual share of synergy heads at correct tokens"]
    assert shares.outcome == Outcome.TOO_FEW
    assert "on captions natural (0), POPE natural (19); 20 are needed" in shares.text
    for place, tokens, others in (("captions natural", 0, 4), ("POPE natural", 19, 3)):
        own = [v for claim, v in verdicts.items() if claim.startswith("α of") and claim.endswith(f"on {place}")]
        assert len(own) == others
        assert {v.outcome for v in own} == {Outcome.TOO_FEW}
        assert f"the α of {place} rests on too few correct tokens ({tokens})" in own[0].text


@pytest.mark.parametrize(
    ("difference", "benchmark", "expected"),
    [
        (Interval(1.0, 0.5, 2.0), CAPTIONS, "worse than its own"),
        (Interval(1.0, 0.5, 2.0), QUESTIONS, "better than its own"),
        (Interval(-1.0, -2.0, -0.5), CAPTIONS, "better than its own"),
        (
            Interval(0.1, -0.4, 1.5),
            CAPTIONS,
            NONE.format("1.50"),
        ),
        (
            Interval(0.1, -0.4, 1.5),
            QUESTIONS,
            NONE.format("0.40"),
        ),
    ],
)
def test_conclusion(difference, benchmark, expected):
    assert conclusion(difference, benchmark) == expected


def test_the_figure_has_one_panel_for_each_task(made):
    figure = made.figures["transfer"]()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "used on captions natural",
        "used on POPE natural",
    ]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:2] == ["captions natural: 0.6", "POPE natural: 0.75"]
    drawn = np.asarray(figure.axes[1].lines[1].get_xdata(), float)
    assert drawn[0] == drawn[1] > 0
    assert not np.isnan(drawn).any()


def test_study():
    assert STUDY.benchmarks == ("chair", "pope")
