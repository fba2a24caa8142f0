"""Bootstrap intervals: correct size, deterministic, and paired for comparisons."""

from collections.abc import Mapping

import numpy as np
import pytest

from heal.bench.score.bootstrap import differences, intervals
from heal.bench.tasks.base import Number, ratio
from heal.errors import DataError


def score(totals: Mapping[str, Number]) -> dict[str, Number]:
    return {"mean": ratio(totals["x"], totals["n"]), "rare": ratio(totals["r"], totals["r"])}


def units(values: np.ndarray, rare: int = 0) -> dict[str, dict[str, float]]:
    return {f"u{i}": {"x": float(v), "n": 1.0, "r": float(i < rare)} for i, v in enumerate(values)}


def test_interval_of_a_mean_matches_the_textbook() -> None:
    values = np.random.default_rng(0).normal(5, 2, 400)
    found = intervals(score, units(values), resamples=4000)["mean"]
    half = 1.96 * values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03)
    narrow = intervals(score, units(values), resamples=4000, level=0.5)["mean"]
    assert (narrow.high - narrow.low) == pytest.approx(2 * 0.6745 * values.std() / 20, abs=0.03)


def test_vectorised_equals_one_by_one() -> None:
    """Recomputes the same resamples from the same generator in a loop."""
    values = np.random.default_rng(1).normal(0, 1, 30)
    weights = np.random.default_rng(7).multinomial(30, np.full(30, 1 / 30), size=200)
    by_hand = [np.repeat(values, w).mean() for w in weights]
    found = intervals(score, units(values), seed=7, resamples=200)["mean"]
    assert (found.low, found.high) == pytest.approx(np.percentile(by_hand, [2.5, 97.5]))


def test_seeds_determine_the_result() -> None:
    data = units(np.random.default_rng(2).normal(0, 1, 50))
    assert (
        intervals(score, data, seed=1, resamples=300)["mean"] == intervals(score, data, seed=1, resamples=300)["mean"]
    )
    assert (
        intervals(score, data, seed=1, resamples=300)["mean"] != intervals(score, data, seed=2, resamples=300)["mean"]
    )


def test_pairing_detects_a_small_constant_gain() -> None:
    values = np.random.default_rng(3).normal(0, 10, 100)
    first, second = units(values), units(values + 0.1)
    found = differences(score, first, second)["mean"]
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))
    assert found.excludes_zero
    shuffled = dict(sorted(second.items(), key=lambda pair: hash(pair[0])))
    assert differences(score, first, shuffled)["mean"].low == pytest.approx(0.1)
    assert not differences(score, first, first)["mean"].excludes_zero


def test_undefined_resamples_are_ignored() -> None:
    found = intervals(score, units(np.ones(50), rare=1), resamples=200)["rare"]
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    never = intervals(score, units(np.ones(5)), resamples=50)["rare"]
    assert np.isnan([never.value, never.low, never.high]).all()
    assert intervals(score, {}) == {}


def test_unpaired_units_are_refused() -> None:
    data = units(np.ones(3))
    with pytest.raises(DataError, match=r"different samples .*u2"):
        differences(score, data, units(np.ones(2)))
    with pytest.raises(DataError, match="unit u1 have different keys"):
        intervals(score, data | {"u1": {"x": 1.0}})
