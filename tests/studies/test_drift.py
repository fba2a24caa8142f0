from dataclasses import replace

import numpy as np
import pytest

from heal.analysis.taxonomy import HeadType
from heal.studies.drift import mean_alpha, separation, separations
from heal.studies.objects import ObjectToken
from heal.studies.statistics import auc

S, V, L = int(HeadType.SYNERGY), int(HeadType.VISUAL), int(HeadType.LANGUAGE)


def token(share, correct=True, step=0, picture=0, types=((S, S, V, L),)):
    alpha = np.broadcast_to(np.asarray(share, np.float32), (1, 4)).copy()
    parts = np.full(2, np.nanmean(alpha), np.float32)
    return ObjectToken(picture, "cup", correct, step, 0, True, alpha, np.array(types, np.uint8), alpha, parts)


def test_auc_with_ties():
    good, bad = np.array([0.9, 0.5, 0.3]), np.array([0.5, 0.1])
    wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    assert auc(good, bad) == pytest.approx(wins / 6)
    assert auc(bad, good) == pytest.approx(1 - wins / 6)
    assert np.isnan(auc(good, np.array([])))


def test_mean_over_heads_of_the_type_with_a_defined_share():
    t = token([0.2, 0.6, 0.9, 0.1])
    assert mean_alpha(t) == pytest.approx(0.4)
    assert mean_alpha(t, HeadType.VISUAL) == pytest.approx(0.9)
    assert mean_alpha(token([0.2, np.nan, 0.9, 0.1])) == pytest.approx(0.2)
    assert np.isnan(mean_alpha(token(0.5, types=((V, V, V, L),))))


def test_drift_is_detected_and_absent_drift_is_not():
    rng = np.random.default_rng(0)
    drifting, still = [], []
    for picture in range(150):
        for correct in (True, True, False):
            drifting.append(token(rng.normal(0.5 if correct else 0.4, 0.1), correct, int(rng.integers(40)), picture))
            still.append(token(rng.normal(0.5, 0.1), correct, int(rng.integers(40)), picture))
    found = {row.value: row for row in separations(drifting, resamples=200)}["α_vis of synergy heads"]
    assert (found.correct, found.hallucinated) == (300, 150)
    assert found.auc == pytest.approx(0.76, abs=0.04)  # Φ(1/√2)
    assert found.low < found.auc < found.high
    assert found.low > 0.6
    assert found.within == pytest.approx(found.auc, abs=0.05)
    chance = separations(still, resamples=200)[0]
    assert chance.low < 0.5 < chance.high


def test_first_mentions_are_evaluated_separately():
    rng = np.random.default_rng(2)
    tokens = [
        replace(token(rng.normal(0.5 if first and correct else 0.4, 0.05), correct, 0, picture), first=first)
        for picture in range(60)
        for correct in (True, False)
        for first in (True, False)
    ]
    every, fresh, *_ = separations(tokens, resamples=50)
    assert fresh.value == "α_vis of synergy heads, first mentions"
    assert (every.correct, fresh.correct) == (120, 60)
    assert fresh.auc > 0.85 > every.auc > 0.6


def test_drift_explained_by_position_is_recognised():
    """Shares decrease along the answer and hallucinations come late: no difference at similar positions."""
    rng = np.random.default_rng(1)
    tokens = []
    for picture in range(400):
        for _ in range(3):
            step = int(rng.integers(100))
            correct = bool(rng.random() > step / 120)
            tokens.append(token(0.8 - 0.006 * step + rng.normal(0, 0.03), correct, step, picture))
    found = separation("α", mean_alpha, tokens, resamples=50, seed=0)
    assert found.auc > 0.7
    assert abs(found.within - 0.5) < abs(found.auc - 0.5) / 2


def test_without_hallucinations_figures_are_nan():
    found = separation("α", mean_alpha, [token(0.5)], resamples=10, seed=0)
    assert (found.correct, found.hallucinated) == (1, 0)
    assert np.isnan([found.auc, found.low, found.high, found.within, found.mean_hallucinated]).all()
    assert separation("α", mean_alpha, [], 10, 0).correct == 0
