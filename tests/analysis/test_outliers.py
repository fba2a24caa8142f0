"""The σ rule and the cut on logits for heads that differ by rounding only."""

import numpy as np
import pytest
import torch

from heal.analysis.contribution import causally_redundant
from heal.analysis.information import HeadScores
from heal.analysis.outliers import far_below
from heal.analysis.taxonomy import HeadType, classify

CONSTANTS = (0.1, 1 / 3, 0.7, 1e-3, 3e-5)


@pytest.mark.parametrize("heads", [11, 12, 28, 32])
@pytest.mark.parametrize("sigma", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("yeo_johnson", [False, True])
def test_equal_values_have_no_outliers(heads: int, sigma: float, yeo_johnson: bool) -> None:
    for constant in CONSTANTS:
        values = torch.full((1, 3, heads), constant)
        assert not far_below(values, sigma, yeo_johnson).any()
        assert not causally_redundant(values, sigma, yeo_johnson).any()
        values[0, 0, 3] = float(np.nextafter(np.float32(constant), np.float32(0)))
        assert not far_below(values, sigma, yeo_johnson).any()


def test_values_far_below_the_mean_are_found() -> None:
    values = torch.full((2, 16), 0.1)
    values[0, 5] = 0.0999
    values[1, 5], values[1, 6] = torch.nan, 0.02
    found = far_below(values, 3.0)
    assert found.nonzero().tolist() == [[0, 5], [1, 6]]
    assert not far_below(values, float("inf")).any()


@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_layers_and_rows_of_equal_heads_keep_all_heads(sigma: float) -> None:
    for constant in CONSTANTS:
        total = torch.full((1, 4, 12), constant)
        scores = HeadScores(total / 2, total / 3, total)
        types = classify(scores, torch.zeros_like(total, dtype=torch.bool), sigma=sigma).types
        assert (types == int(HeadType.SYNERGY)).all()


@pytest.mark.parametrize("mad", [0.0, 2.9652])
def test_heads_with_the_same_mix_up_to_rounding_are_all_synergy(mad: float) -> None:
    """More than half have the same logit, so the MAD is 0."""
    visual, language = torch.full((1, 2, 8), 0.3), torch.full((1, 2, 8), 0.1)
    visual[0, 0, :3] *= 1 + 3e-7
    scores = HeadScores(visual, language, torch.full_like(visual, 0.5))
    types = classify(scores, torch.zeros_like(visual, dtype=torch.bool), mad=mad).types
    assert (types == int(HeadType.SYNERGY)).all()
    visual[0, 1, 7] = 0.31
    apart = HeadScores(visual, language, scores.total)
    types = classify(apart, torch.zeros_like(visual, dtype=torch.bool), mad=mad).types
    assert types[0, 1, 7] == int(HeadType.VISUAL)
