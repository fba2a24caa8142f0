"""Expected scores: equal to the written-out oracle, close to the mean of many draws, and independent of the batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from heal.analysis.contribution import Shift, contribution, projected_contribution, replaced, squared_norms
from heal.analysis.counterfactual import COVARIANCES, Attended, noise_partials
from heal.analysis.expected import StepTables, expected_scores
from heal.analysis.information import MEASURES, HeadScores, mean_scores, scores_from_partials
from heal.analysis.lognormal import NodeTables
from heal.analysis.moments import Moments
from heal.analysis.reference_expected import reference_expected_scores
from heal.analysis.split import Regions
from tests.analysis.conftest import CPU, attended, examples, noise

EVEN = ("LLVVVVVVLLLL", "LLVVVVVVLLLL")
UNEVEN = ("LLVVVVVVLLLL", "..LLVVVVLLLL", "LLLL.LLLLLLL")  # other counts, padding, and text only
TABLES = NodeTables(CPU)


def scores(at: Attended, measure: Any = "cosine", covariance: Any = "diagonal") -> torch.Tensor:
    moments = Moments.of(at.key, at.value, at.regions)
    tables = StepTables.of(at.regions, at.scale, TABLES)
    return expected_scores(at, moments, tables, measure, covariance).flatten(1, 2)


def assert_oracle(at: Attended, measure: Any = "cosine", covariance: Any = "diagonal", atol: float = 2e-6) -> None:
    slow = reference_expected_scores(at, covariance, measure)
    found = HeadScores(*scores(at, measure, covariance).unbind(-1))
    for name in ("visual", "language", "total"):
        assert_close(getattr(found, name), getattr(slow, name), atol=atol, rtol=0)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("patterns", [EVEN, UNEVEN])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
def test_equal_to_the_oracle(patterns, groups, heads, measure):
    if groups == 3:
        patterns = tuple("N" + row[1:] for row in patterns)
    assert_oracle(attended(patterns, heads=heads[0], kv_heads=heads[1], groups=groups), measure)


@pytest.mark.parametrize("factor", [5.0, 30.0])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_sharp_attention_equals_the_oracle(covariance, factor):
    at = attended(UNEVEN)
    assert_oracle(replace(at, query=at.query * factor), covariance=covariance)


def test_capped_scores_equal_the_oracle():
    at = attended(EVEN)
    assert_oracle(replace(at, query=at.query * 10, softcap=5.0))


@examples(15)
@given(
    rows=st.lists(st.text("VL.", min_size=6, max_size=6).filter(lambda r: "L" in r), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    seed=st.integers(0, 99),
    factor=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_any_rows_equal_the_oracle(rows, heads, seed, factor):
    at = attended(rows, heads=heads[0], kv_heads=heads[1], seed=seed)
    assert_oracle(replace(at, query=at.query * factor), atol=5e-6)


def draws(at: Attended, count: int) -> HeadScores:
    moments = Moments.of(at.key, at.value, at.regions)
    return mean_scores(
        [
            scores_from_partials(at.split(), noise_partials(at, moments, "gaussian", noise(seed)))
            for seed in range(count)
        ]
    )


@pytest.mark.parametrize(("factor", "bound"), [(1.0, 0.008), (5.0, 0.02), (30.0, 0.03)])
def test_close_to_the_mean_of_many_draws(factor, bound):
    at = attended(["LLLL" + 30 * "V" + 20 * "L"], heads=8, dim=16)
    at = replace(at, query=at.query * factor)
    mean, found = draws(at, 512), scores(at)
    for name, own in zip(("visual", "language", "total"), found.unbind(-1), strict=True):
        error = (getattr(mean, name) - own).abs()
        assert error.mean() < bound
        assert error.max() < 4 * bound


def test_a_row_gets_the_same_in_any_batch():
    at = attended(UNEVEN)
    together = scores(at)
    for row in range(len(UNEVEN)):
        own = Attended(
            at.query[row : row + 1],
            at.key[row : row + 1],
            at.value[row : row + 1],
            Regions.of(at.regions.masks[row : row + 1]),
            at.scale,
        )
        assert_close(scores(own)[0], together[row], atol=1e-6, rtol=0)


def test_nan_stays_nan():
    at = attended(EVEN)
    at.query[0, 1] = torch.nan
    found = scores(at)
    assert found[0, 1].isnan().all()
    assert found[1].isfinite().all()


# ── contributions ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("measure", MEASURES)
def test_expected_contributions_are_close_to_the_mean_of_many_draws(measure):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 6, 16, generator=generator) + 0.3
    weight = torch.randn(64, 96, generator=generator) / 8
    stream = torch.randn(2, 64, generator=generator) * 2
    norms = squared_norms(weight, 6)
    assert_close(norms[1], weight[:, 16:32].square().sum())
    expected = projected_contribution(stream, Shift.of(outputs, "expected", noise(), norms), weight, measure)
    found = []
    for seed in range(1024):
        moved = replaced(outputs, "gaussian", noise(seed)) - outputs
        found.append(contribution(stream, torch.einsum("bhd,ohd->bho", moved, weight.view(64, 6, 16)), measure))
    mean = torch.stack(found).mean(0)
    assert_close(expected, mean, atol=0.004, rtol=0.05)
