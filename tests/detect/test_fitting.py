"""Fitting: it finds what the labels depend on, holds images out, and calibrates."""

import subprocess
import sys

import numpy as np
import pytest

from heal.detect.calibration import Isotonic, Platt
from heal.detect.features import names_of, whole
from heal.detect.fitting import Standard, best_column, calibration, fit, fit_model, folds, held_out, isotonic
from heal.detect.labels import as_arrays, from_arrays, joined
from heal.errors import DataError
from tests.detect.making import HEADS, LAYERS, labelled


def test_the_features_that_matter_get_the_weights() -> None:
    model = fit_model(labelled(1200), whole(("probability", "position", "attention"), LAYERS, HEADS)).model
    assert set(np.argsort(-np.abs(model.weights))[:2].tolist()) == {0, 7}
    assert model.weights[0] < 0
    assert model.weights[7] < 0


def test_noise_is_regularised_away() -> None:
    model = fit_model(labelled(pull=0.0), whole(("attention", "share", "information"), LAYERS, HEADS)).model
    assert np.abs(model.weights).max() < 0.1


def test_words_of_an_image_are_held_out_together() -> None:
    pictures = labelled().picture
    seen: list[int] = []
    for train, test in folds(pictures, 0):
        assert not set(pictures[train]) & set(pictures[test])
        seen += test.tolist()
    assert sorted(seen) == list(range(len(pictures)))


def test_held_out_scores_of_noise_tell_nothing() -> None:
    """With as many features as words, a regression knows its own words by heart."""
    words = labelled(120, pull=0.0)
    values = np.random.default_rng(1).normal(size=(120, 120))
    scores = held_out(words, values, 1.0)
    bad = words.hallucinated
    assert abs(np.corrcoef(scores, bad)[0, 1]) < 0.3
    assert np.isfinite(scores).all()


def test_a_missing_family_is_left_out() -> None:
    words = labelled()
    words.features.values["agreement"][:] = np.nan
    assert list(fit(words).models) == ["without hidden states", "text"]
    assert "without heads" not in fit(words).baselines


def test_baselines_have_their_own_features() -> None:
    names = {name: names_of(own.columns, LAYERS, HEADS) for name, own in fit(labelled()).baselines.items()}
    assert names["log-probability"] == ["logprob"]
    assert names["log-probability, position, first mention"] == ["logprob", "step", "new"]
    assert names["these and α_vis of every head"][2:5] == ["new", "visual share 0.0", "visual share 0.1"]
    assert len(names["similarity of the word"]) == 1
    assert not any("visual" in name for name in names["without heads"])


def test_the_best_column_is_the_one_that_tells() -> None:
    rng = np.random.default_rng(0)
    values, bad = rng.normal(size=(400, 4)), rng.random(400) < 0.4
    values[:, 2] -= 2 * bad
    assert best_column(values, bad) == 2


def test_scores_of_a_logistic_curve_are_calibrated_by_one() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=4000) * 2
    bad = rng.random(4000) < 1 / (1 + np.exp(-(0.5 * scores - 1)))
    link = calibration(scores, bad, np.arange(4000) // 4)
    assert isinstance(link, Platt)
    assert (link.slope, link.shift) == pytest.approx((0.5, -1.0), abs=0.12)


def test_other_curves_are_calibrated_by_steps() -> None:
    rng = np.random.default_rng(0)
    scores = rng.uniform(-3, 3, 4000)
    truth = np.where(scores < 0, 0.05, np.where(scores < 2.9, 0.5, 0.95))
    link = calibration(scores, rng.random(4000) < truth, np.arange(4000) // 4)
    assert isinstance(link, Isotonic)
    assert link.probability(np.array([-2.0, 1.5])) == pytest.approx([0.05, 0.5], abs=0.05)


def test_an_isotonic_curve_rises() -> None:
    rng = np.random.default_rng(0)
    link = isotonic(rng.normal(size=2000), rng.random(2000) < 0.3)
    assert (np.diff(link.scores) > 0).all()
    assert (np.diff(link.values) >= 0).all()
    assert len(link.scores) <= 50


def test_a_scale_ignores_missing_values() -> None:
    standard = Standard.of(np.array([[1.0, np.nan, 2.0], [3.0, np.nan, 2.0], [np.nan, np.nan, 2.0]]))
    assert standard.mean.tolist() == [2, 0, 2]
    assert standard.scale.tolist() == [1, 1, 1]


@pytest.mark.parametrize(("words", "match"), [(30, "at least 20 of each")])
def test_too_few_words(words: int, match: str) -> None:
    with pytest.raises(DataError, match=match):
        fit(labelled(words))


def test_labelled_words_can_be_stored_and_joined() -> None:
    whole = labelled()
    parts = [from_arrays(as_arrays(whole.of_pictures(np.arange(a, b)))) for a, b in ((0, 40), (40, 100))]
    again = joined(parts)
    assert again.captions == whole.captions
    assert len(again) == len(whole)
    for name, values in whole.features.values.items():
        np.testing.assert_array_equal(again.features.values[name], values)
    np.testing.assert_array_equal(again.hallucinated, whole.hallucinated)
    np.testing.assert_array_equal(again.category, whole.category)


@pytest.mark.slow
def test_inference_does_not_need_scikit_learn() -> None:
    code = (
        "import sys; import heal.detect; from heal.vlm import EMBEDDED; "
        "heal.detect.Detector.load(EMBEDDED / 'detector.json'); assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
