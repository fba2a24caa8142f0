import numpy as np
import pytest

from heal.methods import HEAL
from heal.studies import normality
from heal.studies.normality import CONTRIBUTION, INFORMATION, STUDY, agreement, p_value, quantiles, samples, spaced
from heal.studies.parts import Records
from heal.studies.setup import Setup
from heal.studies.study import Found, Outcome
from heal.studies.traces import TracedAnswer
from tests.studies.made import S, V, cells, traced


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    monkeypatch.setattr(normality, "TRIALS", 30)


def found_of(*records, **options):
    return Found(Setup(methods={"heal": HEAL(**options)}), {"traces natural": Records.of(records)})


def made(draw, number, steps=3, layers=2, heads=32):
    rng = np.random.default_rng(number)
    values = draw(rng, (steps, layers, heads))
    types = np.full((steps, layers, heads), S)
    return traced(str(number), types, 0.3, 0.3, values, contribution=values)


def normal(rng, shape):
    return 1 + 0.01 * rng.normal(size=shape)


def exponential(rng, shape):
    return 1 + 0.01 * rng.exponential(size=shape)


def test_one_sample_per_layer_and_token_without_unmeasured_heads():
    contribution = np.array([[[0.1, 0.2, 0.3, 0.4, np.nan], [0.1, 0.1, 0.1, 0.1, 0.1]]])
    total = np.arange(10).reshape(1, 2, 5)
    answer = TracedAnswer.of(traced("a", np.full((1, 2, 5), V), total=total, contribution=contribution))
    found = samples([answer])
    (one,) = found[CONTRIBUTION]  # the second layer has equal heads
    assert (one.unit, one.layer) == ("a", 0)
    np.testing.assert_allclose(one.values, [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    (other,) = found[INFORMATION]
    np.testing.assert_allclose(other.values, np.arange(10))


def test_normal_scores_pass_and_exponential_ones_do_not():
    for draw, outcome in ((normal, Outcome.NOT_CONFIRMED), (exponential, Outcome.CONTRADICTED)):
        report = STUDY.report(found_of(*(made(draw, i) for i in range(12))))
        rows = cells(report, "values")
        share = rows[CONTRIBUTION]["p > 0.05"]
        assert rows[CONTRIBUTION]["tests"] == 12 * 3 * 2
        assert (rows[CONTRIBUTION]["heads"], rows[INFORMATION]["heads"]) == (32, 64)
        if draw is normal:
            assert share.value == pytest.approx(95, abs=4)
            assert rows[CONTRIBUTION]["not rejected (Holm)"].value > 99
            assert report.verdicts[0].outcome in (Outcome.NOT_CONFIRMED, Outcome.CONFIRMED)
        else:
            assert share.high < 60
            assert report.verdicts[0].outcome == outcome
        assert rows[CONTRIBUTION]["power %"].value > 60


def test_holm_can_reject_with_many_tests():
    """The p-values of statsmodels' table would end at 0.001, which no correction for 1,000 tests could reject."""
    assert p_value(np.random.default_rng(0).exponential(size=200) ** 2) < 1e-6


def test_order_statistics():
    rng = np.random.default_rng(0)
    every = [normality.Sample("a", 0, rng.normal(5, 3, 16)) for _ in range(2000)]
    found = quantiles(every)
    assert found is not None
    np.testing.assert_allclose(found.mean, found.normal, atol=0.08)
    assert (found.low < found.mean).all()
    assert (found.mean < found.high).all()
    assert quantiles([]) is None


def test_agreement_with_the_transform_by_hand():
    """The lowest head is redundant before the transform, which makes the skewed values nearly symmetric."""
    total = 2 + 0.1 * np.log((np.arange(64) + 0.5) / 64)  # the lowest is 3.8 deviations below the mean
    record = traced("a", np.full((1, 8, 8), S), 0.3, 0.3, np.broadcast_to(total.reshape(8, 8), (1, 8, 8)))
    shares, tokens = agreement([TracedAnswer.of(record)], HEAL(), 0)
    assert tokens == 1
    assert shares.value == pytest.approx(63 / 64)
    never, _ = agreement([TracedAnswer.of(record)], HEAL(sigma_info=float("inf")), 0)
    assert never.value == 1


def test_evenly_spaced():
    assert spaced(list(range(10)), 4) == [0, 3, 6, 9]
    assert spaced([1, 2], 4) == [1, 2]


def test_nothing_to_test():
    report = STUDY.report(found_of(traced("a", [[[S, V]]])))
    assert report.tables[0].rows == []
    assert {verdict.outcome for verdict in report.verdicts} == {Outcome.TOO_FEW}
    assert report.figures["quantiles"]() is not None
