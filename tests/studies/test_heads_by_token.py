import numpy as np
import pytest

from heal.studies import heads_by_token
from heal.studies.heads_by_token import ALL, FIRST, STUDY
from heal.studies.parts import Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from tests.studies.made import L, S, V, cells, name, traced

TYPES = [[[S, S, V, L]]] * 4
VISUAL = [[[0.4, 0.2, 0.5, -0.1]], [[0.1, 0.1, 0.5, 0.0]], [[0.3, 0.3, 0.5, 0.0]], [[0.0, 0.0, 0.0, 0.0]]]
LANGUAGE = [[[0.1, 0.2, -0.1, 0.7]], [[0.3, -0.1, 0.0, 0.9]], [[0.3, 0.3, 0.0, 0.8]], [[0.0, 0.0, 0.0, 0.0]]]


def found_of(*records, distributions=("natural",)):
    return Found(Setup(distributions=distributions), {f"traces {d}": Records.of(records) for d in distributions})


def rows_of(report):
    return cells(report, "names", "quantity")


NAMES = [name(0), name(1, correct=False), name(2, first=False), name(3)]
"""The last one has no types."""


def test_values_at_the_tokens_of_names_by_hand():
    answer = traced("a", TYPES, VISUAL, LANGUAGE, 0.8, NAMES)
    rows = rows_of(STUDY.report(found_of(answer)))
    synergy = rows[ALL, "number of synergy heads"]
    assert (synergy["correct"].value, synergy["hallucinated"].value, synergy["correct names"]) == (2, 2, 2)
    assert rows[FIRST, "number of visual heads"]["correct names"] == 1
    share = rows[ALL, "α_vis of synergy heads"]
    # step 0: 0.8 and 0.5; step 1: 0.25, and a head without positive language information; step 2: 0.5
    assert share["correct"].value == pytest.approx((0.65 + 0.5) / 2)
    assert share["hallucinated"].value == pytest.approx(0.25)
    assert share["difference"].value == pytest.approx(0.575 - 0.25)
    assert share["AUC"].value == 1
    part = rows[ALL, "I_vis / I_total of synergy heads"]
    assert part["correct"].value == pytest.approx((0.6 / 1.6 + 0.6 / 1.6) / 2)
    assert part["hallucinated"].value == pytest.approx(0.1 / 0.8)
    assert (part["correct"].paper, part["hallucinated"].paper) == (0.43, 0.28)
    assert (part["difference"].paper, part["difference"].expected) == (0.15, "↑")
    assert rows[ALL, "I_lang of language heads"]["correct"].value == pytest.approx(0.75)
    assert rows[ALL, "I_vis of visual heads"]["hallucinated"].value == pytest.approx(0.5)


def test_too_few_names_are_said():
    report = STUDY.report(found_of(traced("a", TYPES, names=[name(0), name(1, correct=False)])))
    assert {verdict.outcome for verdict in report.verdicts} == {Outcome.TOO_FEW}
    assert "too few" in report.verdicts[0].text
    assert "(1; an interval needs 20)" in report.verdicts[0].text


def test_an_answer_without_names_or_synergy_heads():
    report = STUDY.report(found_of(traced("a", [[[V, V, L, L]]] * 2, names=[name(0)]), traced("b", TYPES)))
    share = rows_of(report)[ALL, "α_vis of synergy heads"]
    assert np.isnan(share["correct"].value)
    assert share["correct names"] == 0
    for draw in report.figures.values():
        assert draw().axes


def made(rng, drift, number):
    visual = np.clip(rng.normal(0.5, 0.05, (3, 1, 4)), 0.05, 0.95)
    visual[1] -= drift
    return traced(str(number), TYPES[:3], visual, 1 - visual, 1.0, [name(0), name(1, correct=False)])


@pytest.mark.parametrize(("drift", "outcome"), [(0.2, Outcome.CONFIRMED), (-0.2, Outcome.CONTRADICTED)])
def test_verdict_of_a_made_drift(drift, outcome):
    rng = np.random.default_rng(0)
    report = STUDY.report(found_of(*(made(rng, drift, i) for i in range(40))))
    verdict = report.verdicts[0]
    assert verdict.outcome == outcome
    assert verdict.claim == "drift of α_vis (natural, all names)"


def test_both_distributions_have_rows_of_their_own():
    report = STUDY.report(found_of(traced("a", TYPES, names=[name(0)]), distributions=("natural", "counter")))
    assert len(report.tables[0].rows) == 4 * len(heads_by_token.QUANTITIES)


def test_types_of_the_last_refresh():
    types = [[[S, V]], [[V, S]], [[V, S]], [[S, S]]]
    answer = traced("a", types, [[[0.2, 0.4]]], 0.2, names=[name(2)])
    rows = rows_of(STUDY.report(found_of(answer)))
    assert rows[ALL, "α_vis of synergy heads"]["correct"].value == pytest.approx(2 / 3)
    assert rows[ALL, heads_by_token.SHARE_IN_EFFECT]["correct"].value == pytest.approx(0.5)
