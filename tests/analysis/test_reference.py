import numpy as np
import pytest
import torch

from heal.analysis.contribution import Shift, projected_contribution, replaced
from heal.analysis.counterfactual import COVARIANCES, materialised_partials, noise_partials
from heal.analysis.information import MEASURES, scores_from_partials
from heal.analysis.moments import Moments
from heal.analysis.reference import attend, reference_contribution, reference_output, reference_scores
from heal.analysis.split import merge
from tests.analysis.conftest import attended, cell, noise, plain, sim, where

PATTERNS = {
    "even": (["LVVVLLL", "LVVVLLL"], 2),
    "padded": (["...LVVVLL", "LVVVVVLLL", ".LLLLLLLL"], 2),
    "neutral": (["NLVVVLNL", "NLVVVLNL"], 3),
    "neutral, padded": (["..NLVVLL", "NLVVVVLL"], 3),
}
every_pattern = pytest.mark.parametrize(("patterns", "groups"), PATTERNS.values(), ids=PATTERNS)
every_measure = pytest.mark.parametrize("measure", MEASURES)
NAMES = ("visual", "language", "total")


def assert_scores(one, other) -> None:
    for name in NAMES:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=2e-6)


@every_pattern
@every_measure
def test_zero_masking_equals_the_fast_path(patterns, groups, measure):
    at = attended(patterns, groups=groups)
    fake = noise_partials(at, Moments.of(at.key, at.value, at.regions), "zero", noise())
    fast = scores_from_partials(at.split(), fake, measure)
    assert_scores(reference_scores(at, "zero", noise(), "diagonal", measure), fast)


@every_pattern
def test_zero_masking_by_hand(patterns, groups):
    at = attended(patterns, groups=groups)
    scores = reference_scores(at, "zero", noise(), "diagonal", "cosine")
    for row, head in np.ndindex(len(patterns), 4):
        query, keys, values = cell(at, row, head)
        outputs = []
        for masked in ("", "V", "L", "VL"):
            k, v = keys.copy(), values.copy()
            k[where(patterns[row], masked)] = 0
            v[where(patterns[row], masked)] = 0
            valid = where(patterns[row], "VLN")
            outputs.append(plain(query, k[valid], v[valid], at.scale)[0])
        s01, s10, s00 = (sim(outputs[0], other) for other in outputs[1:])
        expected = {"visual": s10 - s00, "language": s01 - s00, "total": 1 - s00}
        for name in NAMES:
            assert float(getattr(scores, name)[row, head]) == pytest.approx(expected[name], abs=2e-6)


@every_pattern
@pytest.mark.parametrize("masking", ["gaussian", "uniform", "swap"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_with_the_same_noise_it_equals_the_merge_of_materialised_partials(patterns, groups, masking, covariance):
    at = attended(patterns, groups=groups)
    moments = Moments.of(at.key, at.value, at.regions)
    fake = materialised_partials(at, moments, masking, noise(3), covariance)
    expected = scores_from_partials(at.split(), fake)
    assert expected.total.abs().max() > 0.01
    assert_scores(reference_scores(at, masking, noise(3), covariance, "cosine"), expected)


def test_half_precision_caches_are_read_in_fp32():
    at = attended(["..NLVVLL", "NLVVVVLL"], groups=3, dtype=torch.bfloat16)
    whole = type(at)(at.query.float(), at.key.float(), at.value.float(), at.regions, at.scale)
    for masking in ("zero", "gaussian", "swap"):
        half, full = (reference_scores(one, masking, noise(), "diagonal", "cosine") for one in (at, whole))
        assert_scores(half, full)


@every_pattern
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_output_with_scaled_values_equals_the_merge_with_factors(patterns, groups, heads, kv_heads):
    at = attended(patterns, heads, kv_heads, groups=groups)
    beta, gamma = torch.rand(2, len(patterns), heads, generator=torch.Generator().manual_seed(1)) * 3
    found = reference_output(at, beta, gamma)
    factors = [beta, gamma, None][:groups]
    torch.testing.assert_close(found, merge(at.split(), factors), rtol=1e-5, atol=1e-5)
    for row, head in np.ndindex(len(patterns), heads):
        query, keys, values = cell(at, row, head)
        values = values.copy()
        values[where(patterns[row], "V")] *= float(beta[row, head])
        values[where(patterns[row], "L")] *= float(gamma[row, head])
        valid = where(patterns[row], "VLN")
        expected = plain(query, keys[valid], values[valid], at.scale)[0]
        np.testing.assert_allclose(found[row, head], expected, rtol=1e-5, atol=1e-5)


def test_output_with_factors_of_one_equals_plain_attention():
    at = attended(["..NLVVLL", "NLVVVVLL"], groups=3)
    one = torch.ones(2, 4)
    expected = attend(at.query, at.key, at.value, at.regions.masks.any(1), at.scale)
    assert torch.equal(reference_output(at, one, one), expected)


def test_attention_over_nothing_is_zero():
    at = attended(["....", "LVVL"])
    out = attend(at.query, at.key, at.value, at.regions.masks.any(1), at.scale)
    assert not out[0].any()
    assert out[1].all()


@every_measure
@pytest.mark.parametrize("replacement", ["gaussian", "zero", "uniform", "cauchy", "swap"])
def test_contribution_equals_that_of_one_product(replacement, measure):
    torch_generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(3, 4, 8, generator=torch_generator) + 0.5
    residual = torch.randn(3, 16, generator=torch_generator)
    projection = torch.nn.Linear(32, 16)
    weight, bias = (torch.randn(p.shape, generator=torch_generator) / 4 for p in (projection.weight, projection.bias))
    projection.load_state_dict({"weight": weight, "bias": bias})
    with torch.no_grad():
        slow = reference_contribution(outputs, residual, projection, replacement, noise(5), measure)
        moved = replaced(outputs, replacement, noise(5)) - outputs
        fast = projected_contribution(residual + projection(outputs.flatten(1)), Shift(moved), weight, measure)
    assert slow.shape == (3, 4)
    assert (slow > 1e-4).all()
    torch.testing.assert_close(slow, fast, rtol=0, atol=2e-6)
