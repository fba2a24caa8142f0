import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from heal.analysis import contribution as module
from heal.analysis.contribution import (
    Shift,
    causally_redundant,
    contribution,
    contributions_of,
    projected_contribution,
    projection_and_sums,
    replaced,
    shift_sums,
)
from heal.analysis.information import MEASURES
from heal.analysis.outliers import normalised
from heal.errors import ConfigError
from tests.analysis.conftest import examples, noise, sim

ROWS, HEADS, DIM, HIDDEN = 2, 3, 5, 12


def outputs_of(rows=ROWS, heads=HEADS, dim=DIM, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = 1 + torch.rand(rows, heads, 1, generator=generator)
    return scale * torch.randn(rows, heads, dim, generator=generator) + 3 * scale


# ── replacements ─────────────────────────────────────────────────────────────────────────────────────────


def test_gaussian_and_uniform_have_the_mean_and_variance_of_the_entries():
    outputs = outputs_of(dim=30_000)
    for replacement in ("gaussian", "uniform"):
        fake = replaced(outputs, replacement, noise(1)).double().numpy()
        for row, head in np.ndindex(ROWS, HEADS):
            real = outputs[row, head].double().numpy()
            assert fake[row, head].mean() == pytest.approx(real.mean(), abs=4 * real.std() / 30_000**0.5)
            assert fake[row, head].var() == pytest.approx(real.var(), rel=4 * (2 / 30_000) ** 0.5)
            law = stats.norm(real.mean(), real.std())
            if replacement == "uniform":
                law = stats.uniform(real.mean() - 3**0.5 * real.std(), 2 * 3**0.5 * real.std())
            assert stats.kstest(fake[row, head], law.cdf).pvalue > 1e-3 / 12


def test_cauchy_has_the_median_and_deviation_of_the_entries():
    outputs = outputs_of(dim=30_000).exp()
    fake = replaced(outputs, "cauchy", noise(1)).double().numpy()
    for row, head in np.ndindex(ROWS, HEADS):
        real = outputs[row, head].double().numpy()
        median = np.median(real)
        law = stats.cauchy(median, np.median(np.abs(real - median)))
        assert stats.kstest(fake[row, head], law.cdf).pvalue > 1e-3 / 6


@pytest.mark.parametrize("dim", [1, 4, 5, 300])
@pytest.mark.parametrize("replacement", ["gaussian", "uniform", "cauchy"])
def test_replacements_are_centre_plus_scale_times_draw(replacement, dim):
    outputs, source = outputs_of(dim=dim), noise(2)
    fake = replaced(outputs, replacement, source)
    for row, head in np.ndindex(ROWS, HEADS):
        real = outputs[row, head].double().numpy()
        draw = getattr(source, "normal" if replacement == "gaussian" else replacement)
        sample = draw((HEADS,), dim)[head].double().numpy()
        if replacement == "cauchy":
            centre = np.median(real)
            scale = np.median(np.abs(real - centre))
        else:
            centre, scale = real.mean(), real.std()
        np.testing.assert_allclose(fake[row, head], centre + scale * sample, rtol=1e-5, atol=1e-5)


def test_zero_and_swap():
    outputs = outputs_of(rows=3)
    assert torch.equal(replaced(outputs, "zero", noise()), torch.zeros_like(outputs))
    assert torch.equal(replaced(outputs, "swap", noise()), torch.stack([outputs[2], outputs[0], outputs[1]]))
    with pytest.raises(ConfigError):
        replaced(outputs[:1], "swap", noise())


@pytest.mark.parametrize("replacement", ["gaussian", "uniform", "cauchy", "zero"])
def test_a_row_alone_is_replaced_as_in_a_batch(replacement):
    outputs = outputs_of(rows=3)
    together = replaced(outputs, replacement, noise())
    for row in range(3):
        assert torch.equal(replaced(outputs[row : row + 1], replacement, noise())[0], together[row])


def test_half_precision_outputs_are_replaced_in_fp32():
    outputs = outputs_of().bfloat16()
    fake = replaced(outputs, "gaussian", noise())
    assert fake.dtype == torch.float32
    assert torch.equal(fake, replaced(outputs.float(), "gaussian", noise()))


# ── contributions ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("replacement", ["gaussian", "zero", "uniform", "cauchy", "swap"])
@pytest.mark.parametrize("block", [5, 512])
def test_one_product_is_the_loop_over_heads(replacement, measure, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    generator = torch.Generator().manual_seed(3)
    outputs, weight = outputs_of(), torch.randn(HIDDEN, HEADS * DIM, generator=generator) / 4
    bias, residual = (torch.randn(n, HIDDEN, generator=generator) for n in (1, ROWS))
    fake = replaced(outputs, replacement, noise())
    stream = residual + outputs.flatten(1) @ weight.T + bias
    found = projected_contribution(stream, Shift(fake - outputs), weight, measure)
    shifts = torch.einsum("bhd,ohd->bho", fake - outputs, weight.view(HIDDEN, HEADS, DIM))
    torch.testing.assert_close(contribution(stream, shifts, measure), found, rtol=0, atol=2e-6)
    projected, sums = projection_and_sums(residual, outputs, Shift(fake - outputs), weight, bias[0])
    torch.testing.assert_close(residual + projected, stream, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.contribution(measure), found, rtol=0, atol=2e-6)
    again = shift_sums(stream, Shift(fake - outputs), weight)
    for layer in contributions_of([again, sums], measure):  # several layers at once
        torch.testing.assert_close(layer, found, rtol=0, atol=2e-6)
    w, b = weight.double().numpy(), bias[0].double().numpy()
    for row, head in np.ndindex(ROWS, HEADS):
        heads = outputs[row].double().numpy()
        y = residual[row].double().numpy() + w @ heads.reshape(-1) + b
        heads[head] = fake[row, head].double().numpy()
        moved = residual[row].double().numpy() + w @ heads.reshape(-1) + b
        distance = np.linalg.norm(y - moved) / (np.linalg.norm(y) + np.linalg.norm(moved))
        l2 = 2 / (1 + np.exp(distance))
        expected = {"cosine": sim(y, moved), "l2": l2, "cosine+l2": (sim(y, moved) + l2) / 2}[measure]
        assert float(found[row, head]) == pytest.approx(1 - expected, abs=2e-6)


def test_a_head_that_does_not_move_the_stream_contributes_nothing():
    stream = outputs_of(heads=1, dim=HIDDEN)[:, 0]
    shifts = torch.zeros(ROWS, HEADS, HIDDEN)
    shifts[:, 1] = stream  # along the stream: the length changes, the direction does not
    shifts[:, 2] = -2 * stream
    expected = torch.tensor([[0.0, 0.0, 1.0]] * ROWS)
    torch.testing.assert_close(contribution(stream, shifts), expected, rtol=0, atol=3e-7)


def test_half_precision_weights_project_to_full():
    generator = torch.Generator().manual_seed(3)
    outputs, weight = outputs_of(), torch.randn(HIDDEN, HEADS * DIM, generator=generator)
    stream = torch.randn(ROWS, HIDDEN, generator=generator)
    found = projected_contribution(stream, Shift(outputs), weight.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, projected_contribution(stream, Shift(outputs), weight), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_shift_along_the_stream_against_it_onto_zero_and_from_zero(measure):
    """The closed form equals the direct formula where it could divide by zero."""
    stream = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    moved = torch.tensor([[[3.0, 4.0], [-6.0, -8.0], [-3.0, -4.0], [0.0, 0.0], [-4.0, 3.0]]]).expand(2, -1, -1)
    weight = torch.eye(2).repeat(1, 5)
    found = projected_contribution(stream, Shift(moved), weight, measure)
    torch.testing.assert_close(found, contribution(stream, moved, measure), rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3])
def test_small_contributions_do_not_cancel(size):
    generator = torch.Generator().manual_seed(0)
    stream, shifts = torch.randn(1, 64, generator=generator), torch.randn(1, 32, 64, generator=generator) * size
    for found in (
        contribution(stream, shifts),
        projected_contribution(stream, Shift(shifts), torch.eye(64).repeat(1, 32)),
    ):
        for head in range(32):
            y, shift = stream[0].double().numpy(), shifts[0, head].double().numpy()
            assert float(found[0, head]) == pytest.approx(1 - sim(y, y + shift), rel=0.02)


# ── causal redundancy ────────────────────────────────────────────────────────────────────────────────────


def test_a_head_far_below_its_layer_is_redundant():
    values = torch.ones(2, 2, 12)
    values[0, 1, 4] = 0  # mean 11/12, std √11/12: 0 < mean − 3·std = 0.0875
    values[1, 0, 7] = 2  # far above is not redundant
    expected = torch.zeros(2, 2, 12, dtype=torch.bool)
    expected[0, 1, 4] = True
    assert torch.equal(causally_redundant(values), expected)
    assert not causally_redundant(values, sigma=float("inf")).any()
    assert causally_redundant(values, sigma=3.3)[0, 1, 4]  # √11 = 3.3166
    assert not causally_redundant(values, sigma=3.33).any()


@pytest.mark.parametrize("sigma", [0.0, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("yeo_johnson", [False, True])
def test_the_rule_over_the_heads_of_each_layer(sigma, yeo_johnson):
    values = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0)).exp() * 1e-3
    found = causally_redundant(values, sigma, yeo_johnson)
    fired = 0
    for row, layer in np.ndindex(3, 4):
        heads = values[row, layer].double().numpy()
        if yeo_johnson:
            heads = stats.yeojohnson((heads - heads.mean()) / heads.std(ddof=1))[0]
        expected = [x < heads.mean() - sigma * heads.std() for x in heads]
        assert found[row, layer].tolist() == expected
        fired += sum(expected)
    assert fired > 0 or (sigma == 2.0 and not yeo_johnson)


def test_an_infinite_sigma_finds_none_even_with_nan():
    values = torch.full((1, 2, 4), torch.nan)
    assert not causally_redundant(values, float("inf")).any()
    assert not causally_redundant(values).any()


def test_equal_heads_are_never_redundant():
    for value in (0.1, 1 / 3, 1e-6, 0.0):
        for heads in (7, 12, 32):
            assert not causally_redundant(torch.full((1, 1, heads), value)).any()


@given(st.integers(2, 3), st.integers(2, 10), st.integers(0, 10_000), st.floats(0, 20))
@examples(100)
def test_few_heads_are_never_redundant(sigma, heads, seed, outlier):
    heads = min(heads, sigma**2 + 1)
    values = torch.randn(2, 3, heads, generator=torch.Generator().manual_seed(seed))
    values[..., 0] -= outlier
    assert not causally_redundant(values, float(sigma)).any()


def test_one_head_more_can_be_redundant():
    for sigma in (1, 2, 3):
        values = torch.ones(1, 1, sigma**2 + 2)
        values[..., 0] = 0
        assert causally_redundant(values, float(sigma)).nonzero().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("sigma", [1, 2, 3])
def test_few_heads_are_never_redundant_at_the_boundary(sigma):
    # all equal except one: mean − σ·std is exactly that value, so only rounding decides
    pairs = torch.rand(300, 2, generator=torch.Generator().manual_seed(0)).sort(-1).values
    values = pairs[:, 1, None, None].repeat(1, 1, sigma**2 + 1)
    values[..., 0] = pairs[:, :1]
    assert not causally_redundant(values, float(sigma)).any()


# ── Yeo–Johnson ──────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 10_000), st.floats(0.1, 2.0), st.sets(st.integers(0, 15), max_size=10))
@examples(60)
def test_yeo_johnson_keeps_ranks_and_nan(seed, skew, missing):
    values = (torch.randn(2, 16, generator=torch.Generator().manual_seed(seed)) * skew).exp() * 1e-3
    values[1, list(missing)] = torch.nan
    out = normalised(values)
    assert out.shape == values.shape
    assert out.dtype == values.dtype
    assert torch.equal(out.isnan(), values.isnan())
    for before, after in zip(values, out, strict=True):
        kept = ~before.isnan()
        assert (after[kept][before[kept].argsort()].diff() >= 0).all()


def test_yeo_johnson_removes_skew():
    values = torch.randn(3, 200, generator=torch.Generator().manual_seed(0)).exp()
    before, after = (stats.skew(x.double().numpy(), axis=1) for x in (values, normalised(values)))
    assert (before > 2).all()
    assert (np.abs(after) < 0.5).all()


def test_yeo_johnson_does_not_change_values_that_cannot_be_fitted():
    for row in ([0.2] * 5, [0.1, 0.3], [torch.nan] * 4, [0.1, 0.2, torch.nan]):
        values = torch.tensor([row])
        assert torch.equal(normalised(values).nan_to_num(7.0), values.nan_to_num(7.0))


def test_yeo_johnson_fits_every_row_separately():
    values = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0)).exp()
    together = normalised(values)
    for at in np.ndindex(2, 3):
        assert torch.equal(normalised(values[at][None])[0], together[at])
