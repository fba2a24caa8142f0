"""AUROC, average precision and Brier score against definitions and scikit-learn, with weights and ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from heal.detect.ranking import auroc, average_precision, weighted_auroc, weighted_brier, weighted_precision


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties, labels, and how often each word counts."""
    rng = np.random.default_rng(seed)
    bad = rng.random(60) < 0.3
    return np.round(rng.random(60) + bad * 0.3, 1).clip(0, 1), bad, rng.integers(0, 4, (3, 60)).astype(float)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_weights_count_words_as_often(seed: int) -> None:
    scores, bad, weights = drawn(seed)
    for function, known in (
        (weighted_auroc, roc_auc_score),
        (weighted_precision, average_precision_score),
        (weighted_brier, brier_score_loss),
    ):
        expected = [known(bad, scores, sample_weight=own) for own in weights if (own * bad).sum()]
        np.testing.assert_allclose(function(scores, bad, weights), expected, atol=1e-9)


def test_ties_count_half() -> None:
    assert auroc(np.zeros(10), np.arange(10) < 3) == 0.5
    assert auroc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True])) == pytest.approx(0.875)


def test_the_order_decides_and_not_the_size() -> None:
    scores, bad, _ = drawn(0)
    assert auroc(scores, bad) == auroc(np.exp(9 * scores), bad)
    assert average_precision(scores, bad) == average_precision(np.exp(9 * scores), bad)


def test_one_kind_of_words_has_no_figures() -> None:
    assert np.isnan(auroc(np.arange(3.0), np.ones(3, bool)))
    assert np.isnan(average_precision(np.arange(3.0), np.zeros(3, bool)))
    assert np.isnan(auroc(np.zeros(0), np.zeros(0, bool)))
