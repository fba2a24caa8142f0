"""Judging a detector: intervals, gains on the same resamples, reliability, and too few words."""

from functools import cache

import numpy as np
import pytest

from heal.detect.evaluation import DETECTOR, Verdict, calibration_error, scores_of, verdict, verdicts
from heal.detect.fitting import fit
from heal.detect.model import Detector
from heal.detect.ranking import auroc
from tests.detect.making import labelled


@cache
def detector() -> Detector:
    return fit(labelled(1800, seed=1))


@cache
def judged() -> Verdict:
    return verdict(detector(), labelled(1200, seed=2), "natural", "all", resamples=300)


def test_figures_are_those_of_the_scores() -> None:
    words = labelled(1200, seed=2)
    found = {own.name: own for own in judged().figures}
    assert set(found) == {DETECTOR, *detector().baselines, "without hidden states", "text"}
    for name, scores in scores_of(detector(), words).items():
        assert found[name].auroc.value == pytest.approx(auroc(scores, words.hallucinated))
        assert found[name].auroc.low <= found[name].auroc.value <= found[name].auroc.high
    assert found[DETECTOR].words == 1200
    assert found[DETECTOR].auroc.value > 0.8
    assert found[DETECTOR].brier.value < found["position"].brier.value


def test_gains_are_paired() -> None:
    """The interval of a difference is narrower than those of both values together."""
    found = {own.name: own for own in judged().figures}
    gain = next(own for own in judged().gains if own.over == "log-probability")
    one, other = found[DETECTOR].auroc, found["log-probability"].auroc
    assert gain.auroc.value == pytest.approx(one.value - other.value)
    assert gain.auroc.low > 0
    assert gain.auroc.high - gain.auroc.low < (one.high - one.low) + (other.high - other.low)


def test_a_calibrated_detector_is_reliable() -> None:
    bins = judged().reliability
    assert len(bins) == 10
    assert sum(own.words for own in bins) == 1200
    assert (np.diff([own.risk for own in bins]) >= 0).all()
    assert calibration_error(bins) < 0.06
    assert all(own.share.low <= own.share.value <= own.share.high for own in bins)


def test_an_overconfident_detector_is_not() -> None:
    from dataclasses import replace

    from heal.detect.calibration import Platt

    loud = replace(detector(), models={"everything": replace(detector().models["everything"], link=Platt(8.0, 3.0))})
    bins = verdict(loud, labelled(1200, seed=2), "natural", "all", resamples=20).reliability
    assert calibration_error(bins) > 0.1


def test_each_kind_and_first_mentions() -> None:
    found = verdicts(detector(), {"a": labelled(600, seed=3), "b": labelled(60, seed=4)}, resamples=20)
    assert [(own.kind, own.mentions) for own in found] == [("a", "all"), ("a", "first"), ("b", "all"), ("b", "first")]
    assert found[1].figures[0].words == 300


def test_too_few_words_are_told_and_not_averaged() -> None:
    found = verdict(detector(), labelled(30, seed=4), "natural", "all")
    assert found.figures == ()
    assert "too few for an interval" in found.too_few
