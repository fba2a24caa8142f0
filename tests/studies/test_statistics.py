import numpy as np
import pytest

from heal.studies.statistics import FEWEST, Labelled, auc, compare, mean_interval


def made(values, correct, units=None, steps=None):
    n = len(values)
    given = (
        np.array(values).tolist(),
        np.array(correct).tolist(),
        range(n) if units is None else units,
        [0] * n if steps is None else steps,
    )
    return Labelled.of(*map(list, given))


def test_means_difference_and_auc_by_hand():
    found = compare(made([0.9, 0.5, 0.3, 0.5, 0.1], [True, True, True, False, False]))
    assert (found.correct, found.hallucinated) == (3, 2)
    assert found.mean_correct.value == pytest.approx(17 / 30)
    assert found.mean_hallucinated.value == pytest.approx(0.3)
    assert found.difference.value == pytest.approx(8 / 30)
    assert found.auc.value == pytest.approx((2 + 1.5 + 1) / 6)
    assert found.auc.value == pytest.approx(auc(np.array([0.9, 0.5, 0.3]), np.array([0.5, 0.1])))


def test_too_few_tokens_have_no_interval():
    few = compare(made([0.1] * 50 + [0.2] * (FEWEST - 1), [True] * 50 + [False] * (FEWEST - 1)))
    assert few.too_few
    assert few.difference.value == pytest.approx(-0.1)
    assert np.isnan(few.difference.low)
    assert np.isnan(few.auc.high)
    enough = compare(made([0.1] * 50 + [0.2] * FEWEST, [True] * 50 + [False] * FEWEST))
    assert not enough.too_few
    assert not np.isnan(enough.difference.low)


def test_undefined_values_are_left_out():
    found = compare(made([0.9, float("nan"), 0.1], [True, True, False]))
    assert found.correct == 1
    assert found.mean_correct.value == pytest.approx(0.9)


def test_matched_positions_remove_what_only_the_position_explains():
    rng = np.random.default_rng(0)
    values, correct, steps, units = [], [], [], []
    for unit in range(200):
        for step, share in ((0, 0.9), (40, 0.3)):  # later names are lower and more often hallucinated
            values.append((0.6 if step == 0 else 0.4) + rng.normal(0, 0.05))
            correct.append(rng.random() < share)
            steps.append(step)
            units.append(unit)
    found = compare(made(values, correct, units, steps))
    assert found.difference.low > 0.05
    assert found.matched_difference.low < 0 < found.matched_difference.high
    assert found.auc.low > 0.6
    assert found.matched_auc.low < 0.5 < found.matched_auc.high


def test_matched_figures_by_hand():
    # two windows: differences 0.2 (1 pair) and 0.5 (2 pairs), weights 1/2 and 2/3
    found = compare(made([0.5, 0.3, 0.9, 0.4, 0.4], [True, False, True, False, False], steps=[0, 1, 9, 9, 10]))
    assert found.matched_difference.value == pytest.approx((0.2 * 1 / 2 + 0.5 * 2 / 3) / (1 / 2 + 2 / 3))
    assert found.matched_auc.value == pytest.approx(1)


def test_intervals_come_from_images_not_from_tokens():
    values = np.repeat(np.random.default_rng(1).normal(0, 1, 30), 20)
    correct = np.tile([True, False], 300)
    by_image = compare(made(values, correct, np.repeat(range(30), 20).tolist()))
    by_token = compare(made(values, correct))
    assert by_image.mean_correct.high - by_image.mean_correct.low > 2.5 * (
        by_token.mean_correct.high - by_token.mean_correct.low
    )


def test_mean_interval():
    found = mean_interval([1.0, 2.0, float("nan"), 3.0], ["a", "a", "b", "c"])
    assert found.value == pytest.approx(2)
    assert found.low < 2 < found.high
    assert np.isnan(mean_interval([float("nan")], ["a"]).value)
