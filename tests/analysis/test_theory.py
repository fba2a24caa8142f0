"""The theorems T1 to T3, compared with definitions and finite differences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from heal.analysis import theory

Measure = Callable[[np.ndarray], float]

ALPHAS = st.floats(0.05, 0.95)
SEEDS = st.integers(0, 2**31 - 1)
law = settings(deadline=None, max_examples=50)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


# T1


@law
@given(SEEDS, ALPHAS, st.floats(-3, 3))
def test_rescaling_gives_the_exact_mix(seed: int, alpha: float, decades: float) -> None:
    h_v, h_l = normal(seed, 2, 5, 16)
    pair = theory.rescaled((10**decades * h_v).float(), h_l.float(), alpha)
    torch.testing.assert_close(theory.mix(*pair), torch.full((5,), alpha), rtol=1e-5, atol=0)


@law
@given(SEEDS, ALPHAS)
def test_rescaling_holds_for_any_homogeneous_measure(seed: int, alpha: float) -> None:
    h_v, h_l = normal(seed, 2, 3, 16)

    def taxicab(h: Tensor) -> Tensor:
        return h.abs().sum(-1)

    pair = theory.rescaled(h_v, h_l, alpha, taxicab)
    torch.testing.assert_close(theory.mix(*pair, taxicab), torch.full((3,), alpha, dtype=torch.float64))


def test_rescaling_to_the_current_mix_changes_nothing() -> None:
    h_v, h_l = normal(0, 2, 7, 16)
    same_v, same_l = theory.rescaled(h_v, h_l, theory.mix(h_v, h_l))
    torch.testing.assert_close((same_v, same_l), (h_v, h_l))


def test_half_precision_is_computed_in_single_precision() -> None:
    h_v, h_l = normal(0, 2, 7, 64).to(torch.bfloat16)
    assert theory.mix(h_v, h_l).dtype == torch.float32
    torch.testing.assert_close(theory.mix(h_v, h_l), theory.mix(h_v.float(), h_l.float()))


def test_mix_of_nothing_is_nan() -> None:
    assert theory.mix(torch.zeros(4), torch.zeros(4)).isnan()


# T2


@law
@given(SEEDS, st.floats(0.01, 100), st.floats(0.01, 100))
def test_closed_form_is_the_cosine(seed: int, beta: float, gamma: float) -> None:
    h_v, h_l = normal(seed, 2, 5, 8)
    direct = cosine(beta * h_v + gamma * h_l, h_v)
    torch.testing.assert_close(theory.alignment(h_v, h_l, beta, gamma), direct, rtol=1e-9, atol=1e-12)
    tau = gamma * h_l.norm(dim=-1) / (beta * h_v.norm(dim=-1))
    c = cosine(h_v, h_l)
    text = (1 + tau * c) / (1 + tau**2 + 2 * tau * c).sqrt()
    torch.testing.assert_close(theory.alignment(h_v, h_l, beta, gamma), text, rtol=1e-7, atol=1e-9)


@law
@given(SEEDS, ALPHAS)
def test_alignment_of_alpha_is_that_of_the_rescaled_pair(seed: int, alpha: float) -> None:
    h_v, h_l = normal(seed, 2, 5, 8)
    scaled_v, scaled_l = theory.rescaled(h_v, h_l, alpha)
    direct = cosine(scaled_v + scaled_l, h_v)
    torch.testing.assert_close(theory.alignment_of_alpha(h_v, h_l, alpha), direct)


@law
@given(SEEDS)
def test_alignment_grows_strictly_with_alpha(seed: int) -> None:
    h_v, h_l = normal(seed, 2, 5, 1, 8)
    assume(float(cosine(h_v, h_l).abs().max()) < 0.999)
    curve = theory.alignment_of_alpha(h_v, h_l, torch.linspace(0, 1, 41, dtype=torch.float64))
    assert curve.shape == (5, 41)
    assert (curve.diff(dim=-1) > 0).all()
    torch.testing.assert_close(curve[:, -1], torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(curve[:, :1], cosine(h_v, h_l))


@pytest.mark.parametrize("factor", [2.0, -0.5])
def test_alignment_of_collinear_parts_is_a_sign(factor: float) -> None:
    h_v = normal(1, 8)
    curve = theory.alignment_of_alpha(h_v[None], factor * h_v[None], torch.tensor([0.1, 0.4, 0.6, 0.9]).double())
    expected = [1.0] * 4 if factor > 0 else [-1.0, -1.0, 1.0, 1.0]
    torch.testing.assert_close(curve, torch.tensor(expected, dtype=torch.float64))


# T3


def layer(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    base, a_v, a_l = normal(seed, 3, 6, 12)
    return base, a_v, a_l, normal(seed + 1, 12)


@law
@given(SEEDS, ALPHAS, st.booleans())
def test_slope_is_the_finite_difference(seed: int, alpha: float, given_direction: bool) -> None:
    base, a_v, a_l, gain = layer(seed)
    direction = normal(seed + 2, 6, 12) if given_direction else None

    def at(share: float) -> theory.Margin:
        return theory.margin(base, a_v, a_l, share, gain, direction)

    found = at(alpha)
    difference = (at(alpha + 1e-5).alignment - at(alpha - 1e-5).alignment) / 2e-5
    torch.testing.assert_close(found.slope, difference, rtol=1e-4, atol=1e-7)
    assert (found.value.sign() == found.slope.sign()).all()


def test_slope_is_the_gradient_through_the_norm() -> None:
    base, a_v, a_l, gain = layer(5)
    alpha = torch.full((6,), 0.4, dtype=torch.float64, requires_grad=True)
    stream = base + alpha[:, None] * a_v + (1 - alpha[:, None]) * a_l
    normed = torch.nn.functional.rms_norm(stream, (12,), weight=gain, eps=0.0)
    aligned = cosine(normed, gain * a_v)
    (gradient,) = torch.autograd.grad(aligned.sum(), alpha)
    found = theory.margin(base, a_v, a_l, alpha.detach(), gain)
    torch.testing.assert_close(found.slope, gradient)
    torch.testing.assert_close(found.alignment, aligned.detach())


def test_margin_is_the_formula_of_its_parts() -> None:
    found = theory.margin(*layer(7)[:3], 0.5, layer(7)[3])
    torch.testing.assert_close(found.value, found.t * found.p_norm**2 - found.s * found.q_dot_p)
    size = (found.s**2 + found.p_norm**2).sqrt()
    torch.testing.assert_close(found.alignment, found.s / size)
    torch.testing.assert_close(found.slope, found.value / size**3)


def test_mix_directions_reproduce_the_calibrated_heads() -> None:
    rows, heads, d, model, alpha = 2, 4, 8, 12, 0.6
    h_v, h_l = normal(3, 2, rows, heads, d)
    weight = normal(4, model, heads * d)
    alpha_vis = torch.rand(rows, heads, dtype=torch.float64) * 0.8 + 0.1
    calibrated = torch.tensor([[True, False, True, True], [False, False, True, False]])
    alpha_vis[~calibrated] = torch.nan
    a_v, a_l = theory.mix_directions(h_v, h_l, alpha_vis, calibrated, weight)

    expected = torch.zeros(rows, model, dtype=torch.float64)
    for row, head in calibrated.nonzero().tolist():
        share = alpha_vis[row, head]
        output = alpha / share * h_v[row, head] + (1 - alpha) / (1 - share) * h_l[row, head]
        expected[row] += weight[:, head * d : (head + 1) * d] @ output
    torch.testing.assert_close(alpha * a_v + (1 - alpha) * a_l, expected)
