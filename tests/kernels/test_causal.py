import pytest
import torch

from heal.analysis.contribution import Shift, projected_contribution
from heal.analysis.information import MEASURES
from heal.kernels.causal import fused_contribution
from tests.kernels.conftest import DEVICE


def problem(rows, heads, dim, hidden, dtype=torch.float32):
    """Stream, shift with noise, and weight."""
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(rows, hidden, generator=generator)
    moved = torch.randn(rows, heads, dim, generator=generator)
    weight = torch.randn(hidden, heads * dim, generator=generator) / dim**0.5
    shift = Shift(moved.to(DEVICE), torch.rand(rows, heads, generator=generator).to(DEVICE) * hidden)
    return stream.to(DEVICE), shift, weight.to(DEVICE, dtype)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("rows", "heads", "dim", "hidden"), [(1, 4, 64, 256), (2, 3, 80, 193), (3, 5, 16, 1100)])
def test_contributions_are_those_of_torch(rows, heads, dim, hidden, measure):
    stream, shift, weight = problem(rows, heads, dim, hidden)
    expected = projected_contribution(stream, shift, weight, measure)
    torch.testing.assert_close(fused_contribution(stream, shift, weight, measure), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_multiplied_exactly(dtype):
    stream, shift, weight = problem(2, 4, 64, 256, dtype)
    expected = projected_contribution(stream, shift, weight.float())
    torch.testing.assert_close(fused_contribution(stream, shift, weight), expected)


def test_a_small_shift_has_a_small_contribution_and_none_has_none():
    stream, shift, weight = problem(1, 3, 64, 256)
    shift = Shift(shift.moved * torch.tensor([1e-4, 0.0, 1.0], device=DEVICE)[None, :, None])
    found = fused_contribution(stream, shift, weight)
    torch.testing.assert_close(found, projected_contribution(stream, shift, weight), rtol=1e-4, atol=0)
    assert found[0, 1] == 0


@pytest.mark.parametrize("measure", MEASURES)
def test_a_stream_of_zeros(measure):
    stream, shift, weight = problem(1, 3, 64, 256)
    zeros = torch.zeros_like(stream)
    expected = projected_contribution(zeros, shift, weight, measure)
    torch.testing.assert_close(fused_contribution(zeros, shift, weight, measure), expected)


def test_a_transposed_weight():
    stream, shift, weight = problem(1, 4, 64, 256)
    other = weight.T.contiguous().T
    assert torch.equal(fused_contribution(stream, shift, other), fused_contribution(stream, shift, weight))
