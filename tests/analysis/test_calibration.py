import numpy as np
import pytest
import torch

from heal.analysis.calibration import factors

ALL = torch.ones(3, dtype=torch.bool)


def close(found: torch.Tensor, expected) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), rtol=1e-6, atol=0)


def test_factors_by_hand():
    # α_vis = 3/4, 1/2, 1/5
    visual, language = torch.tensor([0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.4])
    beta, gamma = factors(visual, language, ALL, 0.6, None)
    close(beta, [0.8, 1.2, 3.0])
    close(gamma, [1.6, 0.8, 0.5])


@pytest.mark.parametrize("limit", [1.0, 1.5, 2.0, 3.0])
def test_the_limit_bounds_both_sides(limit):
    visual, language = torch.tensor([1e-4, 0.2, 0.9]), torch.tensor([0.9, 0.3, 1e-4])
    free_beta, free_gamma = factors(visual, language, ALL, 0.5, None)
    beta, gamma = factors(visual, language, ALL, 0.5, limit)
    for bounded, free in ((beta, free_beta), (gamma, free_gamma)):
        close(bounded, [min(max(x, 1 / limit), limit) for x in free.tolist()])
    close(torch.stack([beta[0], gamma[0]]), [limit, max(0.5 * 0.9001 / 0.9, 1 / limit)])


def test_without_a_limit_factors_are_as_large_as_the_formula():
    beta, gamma = factors(torch.tensor([1e-6]), torch.tensor([1.0]), ALL[:1], 0.5, None)
    close(beta, [0.5 * (1 + 1e-6) / 1e-6])
    close(gamma, [0.5 * (1 + 1e-6)])
    beta, gamma = factors(torch.tensor([1.0]), torch.tensor([1e-6]), ALL[:1], 0.01, None)
    close(beta, [0.01 * (1 + 1e-6)])
    close(gamma, [0.99 * (1 + 1e-6) / 1e-6])


@pytest.mark.parametrize("limit", [None, 2.0])
@pytest.mark.parametrize(
    ("visual", "language"), [(0.0, 0.2), (-0.1, 0.2), (0.2, 0.0), (0.2, -0.1), (-0.1, -0.2), (0.0, 0.0)]
)
def test_a_head_that_is_not_mixed_is_unchanged(visual, language, limit):
    beta, gamma = factors(torch.tensor([visual]), torch.tensor([language]), ALL[:1], 0.7, limit)
    assert (beta.item(), gamma.item()) == (1.0, 1.0)


@pytest.mark.parametrize("limit", [None, 2.0])
def test_a_head_that_is_not_calibrated_is_unchanged(limit):
    visual, language = torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(0)) + 0.01
    calibrated = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    beta, gamma = factors(visual, language, calibrated, 0.9, limit)
    assert torch.equal(beta == 1, ~calibrated)
    assert torch.equal(gamma == 1, ~calibrated)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.5, 0.6, 0.95])
@pytest.mark.parametrize("limit", [None, 1.0, 3.0])
def test_a_head_in_equilibrium_keeps_its_output(alpha, limit):
    total = torch.logspace(-4, 0, 50)
    beta, gamma = factors(alpha * total, (1 - alpha) * total, torch.ones(50, dtype=torch.bool), alpha, limit)
    torch.testing.assert_close(beta, torch.ones(50), rtol=0, atol=1e-6)
    torch.testing.assert_close(gamma, torch.ones(50), rtol=0, atol=1e-6)


def test_every_head_can_have_its_own_equilibrium():
    generator = torch.Generator().manual_seed(0)
    visual, language = torch.randn(2, 3, 6, generator=generator) * 0.2 + 0.2
    alpha = torch.rand(3, 6, generator=generator) * 0.8 + 0.1
    calibrated = torch.rand(3, 6, generator=generator) < 0.8
    beta, gamma = factors(visual, language, calibrated, alpha, 4.0)
    for at in np.ndindex(3, 6):
        v, w, a = float(visual[at]), float(language[at]), float(alpha[at])
        expected = (1.0, 1.0)
        if calibrated[at] and v > 0 and w > 0:
            share = v / (v + w)
            expected = (min(max(a / share, 0.25), 4.0), min(max((1 - a) / (1 - share), 0.25), 4.0))
        assert (float(beta[at]), float(gamma[at])) == pytest.approx(expected, rel=1e-5)


def test_the_new_mix_is_alpha_without_a_limit():
    visual, language = torch.rand(2, 20, generator=torch.Generator().manual_seed(0)) + 0.01
    beta, gamma = factors(visual, language, torch.ones(20, dtype=torch.bool), 0.37, None)
    mix = beta * visual / (beta * visual + gamma * language)
    torch.testing.assert_close(mix, torch.full((20,), 0.37), rtol=1e-6, atol=0)
    torch.testing.assert_close(beta * visual + gamma * language, visual + language)


def test_one_sided_corrects_only_drift_toward_language():
    generator = torch.Generator().manual_seed(0)
    visual, language = torch.rand(2, 200, generator=generator) + 0.01
    alpha = torch.rand(200, generator=generator) * 0.8 + 0.1
    calibrated = torch.rand(200, generator=generator) < 0.8
    both = factors(visual, language, calibrated, alpha, 3.0)
    one = factors(visual, language, calibrated, alpha, 3.0, one_sided=True)
    toward_language = visual / (visual + language) < alpha
    assert 20 < int((toward_language & calibrated).sum()) < 180
    for found, usual in zip(one, both, strict=True):
        assert torch.equal(found[toward_language], usual[toward_language])
        assert (found[~toward_language] == 1).all()
    assert (one[0] >= 1).all()
    assert (one[1] <= 1).all()
