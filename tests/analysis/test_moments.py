import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heal.analysis.moments import Moments
from heal.analysis.split import Regions
from tests.analysis.conftest import LETTERS, attended, examples, masks_of, where

KV_HEADS, DIM = 2, 3


def states(patterns, offset=0.0, spread=1.0, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(patterns), KV_HEADS, len(patterns[0]), DIM)
    centre = offset * torch.randn(len(patterns), KV_HEADS, 1, DIM, generator=generator).sign()
    return [(centre + spread * torch.randn(shape, generator=generator)).to(dtype) for _ in range(2)]


def assert_moments(moments: Moments, key, value, patterns, offset=0.0, spread=1.0) -> None:
    """Compare with a loop over rows, groups and heads in double precision, relative to the standard deviation."""
    for row, pattern in enumerate(patterns):
        for name in range(2):
            inside = where(pattern, LETTERS[name])
            assert float(moments.count[row, name]) == len(inside)
            for kv in range(key.shape[1]):
                for which, cached in enumerate((key, value)):
                    found = cached[row, kv, inside].double().numpy()
                    mean = found.mean(0) if inside else np.zeros(found.shape[-1])
                    variance = ((found - mean) ** 2).mean(0) if inside else np.zeros(found.shape[-1])
                    slack = 1e-5 * spread + 1e-6 * offset
                    at = (row, name, kv, which)
                    np.testing.assert_allclose(moments.mean[at], mean, rtol=0, atol=slack)
                    np.testing.assert_allclose(moments.variance[at], variance, rtol=0, atol=6 * spread * slack)


def empty(rows: int) -> Moments:
    shape = (rows, 2, KV_HEADS, 2, DIM)
    return Moments(torch.zeros(rows, 2), torch.zeros(shape), torch.zeros(shape))


def append(moments: Moments, key, value, patterns, j: int) -> None:
    moments.append(key[:, :, j], value[:, :, j], masks_of(patterns, 3)[..., j])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "patterns",
    [["LVVLVLL"] * 2, ["..LVVVL", "LVVLLLN", "LLLLLLL"], ["NLVVNL"], ["LLL", "LLL"]],
    ids=["slices", "padded", "neutral", "only text"],
)
def test_from_the_cache(patterns, dtype):
    key, value = states(patterns, dtype=dtype)
    assert_moments(Moments.of(key, value, Regions.of(masks_of(patterns, 3))), key, value, patterns)


def test_slices_and_masks_agree():
    key, value = states(["LVVLVLLN"] * 3)
    regions = Regions.of(masks_of(["LVVLVLLN"] * 3, 3))
    one = Moments.of(key, value, regions)
    other = Moments.of(key, value, Regions(regions.masks, regions.counts, None))
    assert torch.equal(one.count, other.count)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(one.squared, other.squared, rtol=1e-6, atol=1e-6)


def test_padding_and_neutral_positions_are_ignored():
    patterns = ["..LVVN", "LVVLLN"]
    at = attended(patterns, groups=3)
    before = Moments.of(at.key, at.value, at.regions)
    outside = ~at.regions.masks[:, :2].any(1)[:, None, :, None]
    after = Moments.of(at.key.masked_fill(outside, 5e4), at.value.masked_fill(outside, 5e4), at.regions)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.squared, after.squared)
    assert before.count.tolist() == [[2, 1], [2, 3]]


@st.composite
def growing_rows(draw) -> list[str]:
    length = draw(st.integers(2, 24))
    text = st.text("VLLN.", min_size=length, max_size=length)
    return [draw(text) for _ in range(draw(st.integers(1, 3)))]


@given(growing_rows(), st.integers(0, 99), st.sampled_from([(0.0, 1.0), (1e3, 1.0), (1e3, 0.1)]), st.data())
@examples(60)
def test_running_moments_equal_those_of_the_cache(patterns, seed, shape, data):
    offset, spread = shape
    key, value = states(patterns, offset, spread, seed)
    start = data.draw(st.integers(0, len(patterns[0]) - 1))
    prompt = [pattern[:start] for pattern in patterns]
    moments = (
        Moments.of(key[:, :, :start], value[:, :, :start], Regions.of(masks_of(prompt, 3)))
        if start
        else empty(len(patterns))
    )
    for j in range(start, len(patterns[0])):
        append(moments, key, value, patterns, j)
    assert_moments(moments, key, value, patterns, offset, spread)
    whole = Moments.of(key, value, Regions.of(masks_of(patterns, 3)))
    assert_moments(whole, key, value, patterns, offset, spread)


def test_a_difference_of_sums_would_lose_the_variance():
    patterns = ["V" * 24]
    key, value = states(patterns, 1e3, 0.1)
    truth = key.double().var(2, correction=0)
    naive = key.square().mean(2) - key.mean(2).square()
    assert ((naive - truth).abs() > 0.5 * truth).any()
    kept = Moments.of(key, value, Regions.of(masks_of(patterns))).variance[:, 0, :, 0]
    torch.testing.assert_close(kept.double(), truth, rtol=0.01, atol=0)


@given(growing_rows(), st.integers(0, 99))
@examples(40)
def test_remove_inverts_append(patterns, seed):
    key, value = states(patterns, 3.0, seed=seed)
    moments, history = empty(len(patterns)), []
    for j in range(len(patterns[0])):
        history.append(Moments(moments.count.clone(), moments.mean.clone(), moments.squared.clone()))
        append(moments, key, value, patterns, j)
    for j in reversed(range(len(patterns[0]))):
        moments.remove(key[:, :, j], value[:, :, j], masks_of(patterns, 3)[..., j])
        assert torch.equal(moments.count, history[j].count)
        torch.testing.assert_close(moments.mean, history[j].mean, rtol=0, atol=1e-4)
        torch.testing.assert_close(moments.squared, history[j].squared, rtol=0, atol=2e-3)
        assert (moments.squared >= 0).all()
    assert not moments.mean.any()
    assert not moments.squared.any()


def test_rows_are_counted_separately():
    patterns = ["..VL", "VVLL"]
    key, value = states(patterns)
    moments = empty(2)
    for j in range(4):
        append(moments, key, value, patterns, j)
    assert moments.count.tolist() == [[1, 1], [2, 2]]
    torch.testing.assert_close(moments.mean[0, 0, :, 0], key[0, :, 2])
    torch.testing.assert_close(moments.mean[1, 1, :, 1], value[1, :, 2:].mean(1))
    # a single position has no variance
    assert not moments.variance[0].any()


def test_select_takes_whole_rows():
    patterns = ["..VVLL", "VVLLLL", "LLVVVL"]
    key, value = states(patterns)
    moments = Moments.of(key, value, Regions.of(masks_of(patterns)))
    chosen = moments.select(torch.tensor([2, 0, 2]))
    assert_moments(chosen, key[[2, 0, 2]], value[[2, 0, 2]], [patterns[r] for r in (2, 0, 2)])
    chosen.append(key[:, :, 0], value[:, :, 0], torch.tensor([[True, False, False]] * 3))
    assert moments.count.tolist() == [[2, 2], [2, 4], [3, 3]]  # a copy, not a view
    assert moments.nbytes == 4 * (3 * 2 + 2 * 3 * 2 * KV_HEADS * 2 * DIM)


def test_append_to_equals_append_with_one_group():
    at = attended(["LVVLL", "LVVLL"])
    one, other = (Moments.of(at.key, at.value, at.regions) for _ in range(2))
    key, value = torch.randn(2, *at.key.shape[:2], at.key.shape[-1]).unbind(0)
    one.append(key, value, torch.tensor([[False, True], [False, True]]))
    other.append_to(1, key, value, 4)
    for name in ("count", "mean", "squared"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-6)
