import numpy as np
import pytest

from heal.methods import HEAL
from heal.studies.parts import Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from heal.studies.traces import TracedAnswer
from heal.studies.within_interval import STUDY, changes
from tests.studies.made import L, S, V, cells, traced


def found_of(*records, interval=3):
    setup = Setup(methods={"heal": HEAL(interval=interval)})
    return Found(setup, {"traces natural": Records.of(records)})


ONE = traced("a", [[[S, S, V, L]], [[S, V, V, L]], [[L, L, L, S]], [[S, S, V, L]], [[S, S, V, L]], [[V] * 4]])
TWO = traced("b", [[[V, V, V, V]], [[S, S, S, S]], [[V, V, V, V]]])


def test_pairs_by_hand():
    first = [(c.later, c.agreement, c.kept) for c in changes([TracedAnswer.of(ONE)], 3)]
    # refreshes at 0 and 3; the last step has no types
    assert first == [(1, 0.75, 0.5), (2, 0.0, 0.0), (3, 1.0, 1.0), (1, 1.0, 1.0)]


def test_comparison_with_an_unrelated_answer():
    one, two = TracedAnswer.of(ONE), TracedAnswer.of(TWO)
    (only,) = changes([one, two], 3)[4:]
    assert (only.unit, only.later, only.agreement) == ("b", 1, 0.0)
    assert np.isnan(only.kept)
    assert only.unrelated == 0.5  # all visual against the first answer's step 1
    assert all(np.isnan(c.unrelated) for c in changes([one], 3))


def test_rows():
    report = STUDY.report(found_of(ONE, TWO))
    rows = cells(report, "steps")
    assert list(rows) == ["1", "2", "3", "1 to 3"]
    assert rows["1 to 3"]["agreement"].value == pytest.approx((0.75 + 0 + 1 + 1 + 0) / 5)
    assert rows["1"]["agreement"].value == pytest.approx((0.75 + 1.0 + 0.0) / 3)
    assert rows["1"]["synergy heads that stay"].value == pytest.approx(0.75)
    assert rows["1"]["unrelated"].value == pytest.approx(0.5)
    assert rows["3"]["pairs"] == 1
    assert report.verdicts[0].outcome == Outcome.TOO_FEW


def test_types_that_stay_are_more_alike_than_unrelated_ones():
    rng = np.random.default_rng(0)
    records = []
    for i in range(30):
        own = rng.choice([S, V, L], (1, 8))
        records.append(traced(str(i), np.repeat(own[None], 5, axis=0)))
    report = STUDY.report(found_of(*records))
    assert report.verdicts[0].outcome == Outcome.CONFIRMED
    rows = cells(report, "steps")
    assert rows["1"]["agreement"].value == 1
    assert rows["1"]["unrelated"].value == pytest.approx(1 / 3, abs=0.1)


def test_answers_that_are_too_short():
    report = STUDY.report(found_of(traced("a", [[[S]], [[V]]])))
    assert report.tables[0].rows == []
    assert report.verdicts[0].outcome == Outcome.TOO_FEW
    assert report.figures["agreement"]().axes
