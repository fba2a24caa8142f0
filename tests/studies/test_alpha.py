"""The study of equilibria on hand-made answers."""

import math

import pytest

from heal.errors import MissingPackageError
from heal.methods import HEAL
from heal.studies import alpha
from heal.studies.alpha import ALPHAS, PLAIN, Texts, at, follow_up, name, parts, quality_score, report, settings
from heal.studies.answered import Answered
from heal.studies.parts import Evaluation, Measured, Measurement, Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from tests.studies.made_answers import captions, evaluated, value

SETUP = Setup(samples=3)
GOOD = ("A boat. A car.", "A chair. A person.", "A cow. A kite.")
BAD = ("A boat. A dog.", "A dog. A person.", "A cow. A dog.")
MIDDLE = name(0.5, "two-sided")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Only α = 0.5, two-sided, has no hallucination."""
    texts = {method: captions(SETUP, *(GOOD if method == MIDDLE else BAD)) for method in settings(SETUP)}
    made = evaluated(tmp_path_factory.mktemp("alpha") / "run", SETUP.tasks("chair"), {"chair natural": texts})
    every = SETUP.captions("natural")
    scores = {method: [4.0, 4.0] if method == MIDDLE else [2.0, 4.0] for method in settings(SETUP)}
    records = Records.of([Measured(sample.id, scores) for sample in every])
    return Found(SETUP, {"captions": made, "perplexity natural": records})


def test_settings():
    methods = settings(Setup(methods={"x": HEAL(alpha="profile", delta=0.5, interval=5)}))
    assert len(methods) == 1 + 2 * len(ALPHAS)
    assert methods[PLAIN] is None
    assert methods[name(0.4, "one-sided")] == HEAL(alpha=0.4, drift="language", interval=5)
    assert at(HEAL(alpha="auto", profile="x.json"), 0.6, "both") == HEAL(alpha=0.6)
    (part,) = parts(SETUP)
    assert isinstance(part, Evaluation)
    assert list(part.tasks) == ["chair natural"]


def test_all_answers_are_scored(found):
    (part,) = follow_up(found)
    assert isinstance(part, Measurement)
    assert (part.name, len(part.samples), part.batch_size) == ("perplexity natural", 3, 16)


@pytest.mark.usefixtures("few_are_enough")
def test_report(found):
    made = report(found)
    table, differences = made.tables
    rows = {tuple(row.labels.values())[1:]: row.values for row in table.rows}
    plain, middle = rows["plain", "–"], rows["0.5", "two-sided"]
    assert value(plain, "CHAIR_s ↓").value == 100
    assert value(middle, "CHAIR_s ↓").value == 0
    assert value(middle, "CHAIR_s ↓").paper == "36.9 / 23.5"
    assert value(rows["0.5", "one-sided"], "CHAIR_s ↓").paper is None
    assert value(plain, "perplexity").value == pytest.approx(math.exp(0.5))
    assert value(middle, "perplexity").value == pytest.approx(math.e)
    assert value(middle, "cut answers %").value == 0
    assert value(middle, "BLEU").value >= 0
    changes = {tuple(row.labels.values())[1:]: row.values for row in differences.rows}
    assert value(changes["0.5", "two-sided"], "CHAIR_s ↓").value == -100
    assert value(changes["0.5", "two-sided"], "perplexity").value == pytest.approx(math.e - math.exp(0.5))
    assert value(changes["0.3", "two-sided"], "perplexity").value == 0
    verdicts = {verdict.claim: verdict for verdict in made.verdicts}
    below = verdicts["CHAIR_s below plain at α = 0.5, two-sided (natural)"]
    assert (below.outcome, below.text.rpartition("paper ")[2]) == (Outcome.CONFIRMED, "-14.1 / -3.7")
    assert verdicts["CHAIR_s below plain at α = 0.5, one-sided (natural)"].outcome == Outcome.NOT_CONFIRMED
    edge = verdicts["CHAIR_s at α = 0.3 above that at α = 0.5, two-sided (natural)"]
    assert (edge.outcome, edge.text.rpartition("paper ")[2]) == (Outcome.CONFIRMED, "+2.1 / +0.3")
    fluent = verdicts["difference of perplexity to plain at α = 0.5, two-sided (natural)"]
    assert (fluent.outcome, fluent.text.partition(": ")[2][:5]) == (Outcome.MEASURED, "1.070")
    figure = made.figures["natural"]()
    assert [a.get_title(loc="left") for a in figure.axes][-2:] == ["BLEU", "perplexity"]


def test_without_references_or_sacrebleu_bleu_is_left_out(found, monkeypatch):
    answered = Answered.of(found, "captions", "chair", "natural")
    texts = Texts.of(answered, [PLAIN], list(found.records("perplexity natural")), "no captions")
    assert texts.note == "no captions"
    assert "bleu" not in texts.figures(PLAIN, 0)

    def missing(*_):
        raise MissingPackageError("sacrebleu is not installed")

    monkeypatch.setattr(alpha, "bleu_counts", missing)
    made = report(found)
    assert made.notes[0] == "no BLEU: sacrebleu is not installed"
    assert all("BLEU" not in row.values for row in made.tables[0].rows)
    assert len([axes for axes in made.figures["natural"]().axes if axes.axison]) == 5


def test_perplexity_is_over_all_tokens():
    found = quality_score({"nll": 6.0, "tokens": 4.0, "grams": 0.0, "repeated": 0.0, "answers": 2.0, "cut": 1.0})
    assert found["perplexity"] == pytest.approx(math.exp(1.5))
    assert found["cut"] == 50
