"""The studies of HEAL's settings: masking, measures, replacement and thresholds, on hand-made records."""

import math
from typing import Any

import numpy as np
import pytest

from heal.bench.score.bootstrap import Interval
from heal.methods import HEAL
from heal.studies import masking, measures, replacement, thresholds
from heal.studies.parts import ERROR, Evaluation, Measured, Measurement, Records
from heal.studies.retyping import types_with
from heal.studies.robustness_verdicts import widened
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from heal.studies.traces import TracedAnswer
from heal.studies.variants import PLAIN, SWAPPED, Variant, batch_size, limited, traces_name, varied
from tests.studies.made import I, L, S, V, evaluated, interval, name, score, traced

U = 255
STUDIES = (masking, measures, replacement, thresholds)
TASK = "pope natural"


def record(types, id="a", **more):
    """Four heads at two tokens, the first of which is a correct name and the second a hallucinated one."""
    return traced(id, [[types], [types], [[U] * 4]], names=[name(0), name(1, correct=False)], **more)


def found_of(study, records, f1=(), model=None):
    """`records` and `f1` are by setting; f1 is (value, difference)."""
    variants = study.variants(Setup())
    first = variants[0].label
    traces = {
        traces_name("natural", v.label): Records.of([records.get(v.label, records[first])])
        for v in variants
        if v.types is None
    }
    values = {v.label: dict(f1).get(v.label, (80.0, 0.0)) for v in variants if v.answers}

    def row(label):
        value, difference = values[label]
        differences = None if label == first else {"f1": interval(difference, 0.5)}
        return score(TASK, label, {"f1": interval(value)}, differences)

    rows = [row(label) for label in values]
    parts = {"pope": evaluated(*rows, score(TASK, PLAIN, {"f1": interval(81.0)})), SWAPPED: evaluated(*rows)}
    return Found(Setup(), {**traces, **parts}, model or {"heads": 32})


def cells(report, table=0):
    return {row.labels["setting"]: row.values for row in report.tables[table].rows}


def test_masking_by_hand():
    own = {"expected": record([S, S, V, L]), "gaussian": record([S, V, V, L]), "zero": record([S, L, L, L])}
    report = masking.STUDY.report(found_of(masking, own, {"zero": (70.0, -10.0)}))
    rows = cells(report)
    assert list(rows)[:3] == ["expected (reference)", "gaussian", "zero"]
    assert rows["zero"]["same type as expected, %"].value == 50
    assert rows["zero"]["same type as gaussian, %"].value == 50
    assert rows["zero"]["same type as gaussian, %"].paper == 92.13
    assert rows["expected (reference)"]["same type as gaussian, %"].value == 75
    assert rows["expected (reference)"]["same type as expected, %"] is None
    assert rows["expected (reference)"]["synergy heads, %"].value == 50
    assert (rows["zero"]["POPE F1"].value, rows["zero"]["POPE F1"].paper) == (70, 87.12)
    assert rows["zero"]["difference of F1"].value == -10
    assert rows[PLAIN]["POPE F1"].value == 81
    assert math.isnan(rows["gaussian, another seed"]["POPE F1"].value)
    agreed, drift, f1 = report.verdicts
    assert agreed.outcome == Outcome.NOT_CONFIRMED
    assert "zero 50.0 (50.0 to 50.0) % (paper 92.1)" in agreed.text
    assert drift.outcome == Outcome.TOO_FEW
    assert f1.outcome == Outcome.NOT_CONFIRMED


def test_equal_settings_are_confirmed():
    report = masking.STUDY.report(found_of(masking, {"expected": record([S, S, V, L])}))
    assert [v.outcome for v in report.verdicts] == [Outcome.CONFIRMED, Outcome.TOO_FEW, Outcome.CONSISTENT]


def test_a_little_less_agreement_than_in_the_paper_is_tolerated():
    """95.73 % in the paper: 91.7 % is within five points, 87.5 % is not."""
    base = np.full((13, 1, 4), S, np.uint8)
    base[-1] = U
    outcomes = {}
    for changed in (4, 6):
        other = base.copy()
        other[:changed, 0, 0] = V
        records = {"cosine": traced("a", base), "l2": traced("a", other)}
        outcomes[changed] = measures.STUDY.report(found_of(measures, records)).verdicts[0].outcome
    assert outcomes == {4: Outcome.CONFIRMED, 6: Outcome.NOT_CONFIRMED}


def drifting(rng, number, drift):
    visual = np.clip(rng.normal(0.5, 0.05, (3, 1, 4)), 0.05, 0.95)
    visual[1] -= drift
    return record([S] * 4, str(number), visual=visual, language=1 - visual, total=1.0)


@pytest.mark.parametrize(("drift", "outcome"), [(0.2, Outcome.CONFIRMED), (-0.2, Outcome.CONTRADICTED)])
def test_verdict_and_table_of_drift(drift, outcome):
    rng = np.random.default_rng(0)
    made = [drifting(rng, number, drift) for number in range(40)]
    found = found_of(measures, {"cosine": made[0]})
    traces = {part: Records.of(made) for part in found.parts if part.startswith("traces")}
    report = measures.STUDY.report(Found(found.setup, {**found.parts, **traces}, found.model))
    assert report.verdicts[1].outcome == outcome
    row = cells(report, 1)["l2"]
    assert row["I_vis / I_total, difference"].value == pytest.approx(drift, abs=0.03)
    assert row["I_vis / I_total, difference"].expected == "↑"
    assert row["I_lang / I_total, difference"].expected == "↓"
    assert row["α_vis, correct"].n == 40
    assert row["α_vis, correct"].value == pytest.approx(row["I_vis / I_total, correct"].value, abs=1e-6)


# ── replacement ───────────────────────────────────────────────────────────────────────────────────────────

OUTLIER = np.full((3, 1, 12), 0.5)
OUTLIER[..., 0] = 0.0


def many_heads(contribution):
    types = [[[S] * 12], [[S] * 12], [[U] * 12]]
    return traced("a", types, visual=0.3, language=0.3, total=0.6, contribution=contribution)


def test_replacement_at_lower_thresholds():
    """One head of twelve lies 3.3 standard deviations below the others, with expected and gaussian only."""
    flat = many_heads(0.5)
    records = {"expected": many_heads(OUTLIER), "gaussian": many_heads(OUTLIER), "zero": flat}
    report = replacement.STUDY.report(found_of(replacement, records))
    rows: Any = {(r.labels["threshold"], r.labels["replacement"]): r.values for r in report.tables[2].rows}
    assert ("3σ", "none") not in rows
    assert rows["3σ", "expected"]["redundant heads, %"].value == pytest.approx(100 / 12)
    assert rows["3σ", "expected"]["same redundancy, %"].value == 100
    assert rows["3σ", "zero"]["redundant heads, %"].value == 0
    assert rows["3σ", "zero"]["same redundancy, %"].value == pytest.approx(100 * 11 / 12)
    assert rows["3σ", "gaussian"]["same redundancy, %"] is None


def test_few_heads_are_said_and_give_no_verdict():
    report = replacement.STUDY.report(found_of(replacement, {"expected": record([S, S, V, L])}, model={"heads": 10}))
    assert report.verdicts[0].outcome == Outcome.MEASURED
    assert "complete by construction" in report.verdicts[0].text
    assert any("This model has 10 heads per layer" in note for note in report.notes)
    assert replacement.never_redundant(Found(Setup(), {}, {"heads": 11})) == []


# ── thresholds ────────────────────────────────────────────────────────────────────────────────────────────


def test_thresholds_follow_from_the_stored_scores():
    """Logits of α_vis are 0, 0, 0, 0.5, 0.9, 8: with λ = ∞ all mixed heads are synergy."""
    logits = np.array([0.0, 0.0, 0.0, 0.5, 0.9, 8.0])
    share = 1 / (1 + np.exp(-logits))
    default = HEAL()
    scores = {"visual": share, "language": 1 - share, "total": 0.9}
    made = TracedAnswer.of(traced("a", [[[U] * 6]] * 3, **scores))
    own = types_with(made, default)
    answer = traced("a", own, **scores)
    report = thresholds.STUDY.report(found_of(thresholds, {"default": answer}))
    rows = cells(report)
    assert rows["default (reference)"]["synergy heads, %"].value == pytest.approx(100 * 5 / 6)
    assert rows["λ ∞"]["synergy heads, %"].value == 100
    assert rows["λ ∞"]["same type as default, %"].value == pytest.approx(100 * 5 / 6)
    assert rows["λ ∞"]["POPE F1"].paper == 86.23
    assert rows["σ_causal ∞"]["POPE F1"].paper == 87.89
    assert cells(report, 1)["σ_total 1"]["I_vis / I_total, correct"].paper == 0.45
    assert rows["I_syn > 0 for synergy"]["synergy heads, %"].value == 0
    assert report.verdicts[0].outcome == Outcome.MEASURED
    assert "default: σ_causal 3, σ_total 3, λ 2.9652." in report.notes


def test_positive_synergy_by_hand():
    """Of four synergy heads two have I_syn ≤ 0: one reads more of the image, one more of the text."""
    made = traced(
        "a",
        [[[S] * 4]] * 2,
        visual=[0.3, 0.31, 0.29, 0.3],
        language=[0.3, 0.29, 0.31, 0.3],
        total=[0.7, 0.59, 0.55, 0.61],
    )
    answer = TracedAnswer.of(made)
    assert (types_with(answer, HEAL(mad=math.inf)) == S).all()
    assert thresholds.positive_synergy(answer, HEAL(mad=math.inf))[0, 0].tolist() == [S, V, L, S]
    assert I not in thresholds.positive_synergy(answer, HEAL(mad=math.inf))


def test_the_users_thresholds_are_the_reference():
    labels = [v.label for v in thresholds.variants(Setup(methods={"heal": HEAL(mad=1.4826)}))]
    assert labels[0] == "as given"
    assert "λ 2.9652" in labels
    assert "λ 1.4826" not in labels
    assert "σ_causal 3" not in labels


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.STUDY.name)
def test_parts(study):
    setup = Setup(samples=3)
    parts = {part.name: part for part in study.parts(setup)}
    every = study.variants(setup)
    assert every[0].method == HEAL()
    measured = {name for name, part in parts.items() if isinstance(part, Measurement)}
    assert measured == {traces_name("natural", v.label) for v in every if v.types is None}
    pope = parts["pope"]
    assert isinstance(pope, Evaluation)
    assert next(iter(pope.methods)) == every[0].label
    answering = {v.label for v in every if v.answers}
    swapping = parts.get(SWAPPED)
    swapped = set(swapping.methods) - {every[0].label} if isinstance(swapping, Evaluation) else set()
    assert set(pope.methods) - {PLAIN} | swapped == answering
    assert len({v.label for v in every}) == len(every)


def test_the_reference_shares_its_part_with_other_studies():
    from heal.studies.traces import plain_traces

    setup = Setup(samples=3)
    own = next(part for part in masking.parts(setup) if part.name == traces_name("natural", "expected"))
    assert own.content() == plain_traces(setup, "natural").content()


def test_a_sample_that_is_alone_in_its_batch_cannot_swap():
    part = next(p for p in masking.parts(Setup(samples=3)) if p.name == traces_name("natural", "swap"))
    assert isinstance(part, Measurement)
    (alone,) = part.measure(None, part.samples[:1])  # type: ignore[arg-type]
    assert isinstance(alone, Measured)
    assert "alone in its batch" in alone.facts[ERROR]


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [([10], 4, 4), ([9], 4, 5), ([9, 11], 4, 6), ([65, 64], 64, 65), ([1], 4, None), ([2], 1, 2)],
)
def test_batches_for_swap_leave_no_sample_alone(counts, size, expected):
    assert batch_size(counts, size) == expected


def test_varied_methods_drop_what_they_exclude():
    drawn = HEAL(preset="gaussian", draws=4, covariance="full")
    assert varied(drawn, masking="zero") == HEAL(preset="gaussian", masking="zero")
    assert varied(drawn, measure="l2").draws == 4
    assert varied(drawn, masking="expected").covariance == "full"


def test_official_data_is_limited_to_the_papers_number_of_descriptions(tmp_path):
    assert limited(Setup.on(tmp_path)).samples == 50
    assert limited(Setup.on(tmp_path, samples=200)).samples == 200
    assert limited(Setup()).samples is None


def test_intervals_of_several_tests_are_wider():
    found = widened(Interval(1.0, 0.5, 2.0), 1)
    assert (found.low, found.high) == (0.5, 2.0)
    ten = widened(Interval(1.0, 0.5, 2.0), 10)
    assert (1 - ten.low) / 0.5 == pytest.approx(2.807 / 1.960, abs=1e-3)
    assert (ten.high - 1) / 1.0 == pytest.approx(2.807 / 1.960, abs=1e-3)


def test_figures_are_drawn():
    for study in STUDIES:
        records = {v.label: record([S, S, V, L]) for v in study.variants(Setup())}
        report = study.STUDY.report(found_of(study, records))
        for draw in report.figures.values():
            assert len(draw().axes) == 3


def test_labels_of_variants_have_figures_in_the_paper():
    for variant in (v for study in STUDIES for v in study.variants(Setup()) if v.paper):
        assert isinstance(variant, Variant)
        assert variant.paper[0] in ("masking", "measures", "replacement", "sigma_info", "sigma_causal", "mad")
