"""Split attention of the kernels against heal.analysis.split, group by group."""

import math
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heal.analysis.split import Partial, _split_by_masks, attention_scores, capped, merge
from heal.kernels.launch import split
from tests.kernels.conftest import DEVICE
from tests.kernels.problems import groups_of, random_step, regions_of

FLOAT, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16
LONG = "NLLVVVVVVVLLLLL" + "VL" * 20 + "LLNLLVVVLLL"
PATTERNS = {
    "two groups": ["LVVVVVVLLLL", "LLLLVVVVVLL"],
    "neutral": ["NLVVVVVLLNL", "LVVVVNLLLLL"],
    "padded": ["....LVVVVLL", "NLVVLVLLLLL"],
    "a window": ["......VVVLL", "...VVLLLLNL"],
    "only text": ["LLLLLLLLLLL", "..LLLLLLLLL"],
    "only image": ["VVVVVVVVVVV", "....VVVVVVV"],
    "long": [LONG, "." * 9 + LONG[9:]],
}
SHAPES = [
    (2, 2, 64, FLOAT),
    (4, 2, 80, BRAIN),
    (3, 3, 96, HALF),
    (7, 1, 128, HALF),
    (4, 1, 256, FLOAT),
    (1, 1, 8, BRAIN),
]


def partials(at, parts=1):
    """By the kernel, the parts joined: group by group."""
    means, lses, counts = split(at.query, at.key, at.value, at.groups, at.scale, at.softcap, at.neutral, parts)
    rows, heads, dim = at.query.shape
    used, names = means.shape[1:3]
    means = means.view(rows, -1, used, names, heads // at.key.shape[1], dim).permute(2, 3, 0, 1, 4, 5)
    lses = lses.view(rows, -1, used, names, heads // at.key.shape[1]).permute(2, 3, 0, 1, 4)
    found = []
    for name in range(names):
        lse = lses[:, name].flatten(2)
        found.append(Partial(merge_parts(means[:, name].flatten(2, 3), lse), lse.logsumexp(0)))
    return found, counts.view(rows, -1, used, 2).sum(2)


def merge_parts(means, lses):
    return reduce(torch.add, (m * w[..., None] for m, w in zip(means, lses.clamp(min=-1e30).softmax(0), strict=True)))


def torch_partials(at):
    padding = (at.groups == 255)[:, None, :, None]
    scores = capped(attention_scores(at.query, at.key, at.scale), at.softcap)
    # the kernel of sdpa would carry what is not finite from group to group
    return _split_by_masks(scores, at.value.masked_fill(padding, 0), regions_of(at.groups, at.neutral))


def check(at, parts=1, **tolerance):
    found, counts = partials(at, parts)
    for one, other in zip(found, torch_partials(at), strict=True):
        torch.testing.assert_close(one.value, other.value, **{"rtol": 1e-5, "atol": 3e-6, **tolerance})
        torch.testing.assert_close(one.lse, other.lse, rtol=1e-5, atol=1e-5)
    for name in range(2):
        expected = (at.groups == name).sum(-1, keepdim=True).float().expand(-1, at.key.shape[1])
        assert torch.equal(counts[..., name], expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("patterns", PATTERNS.values(), ids=PATTERNS)
def test_partials_are_those_of_torch(patterns, shape):
    check(random_step(patterns, *shape))


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("parts", [2, 5])
def test_parts_of_the_context_join(parts, heads, kv_heads):
    patterns = [LONG * 4, "." * 150 + (LONG * 4)[150:]]  # whole parts are padding
    check(random_step(patterns, heads, kv_heads, 256), parts)


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=12)
def test_any_shape(data):
    positions, rows = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 3))
    patterns = [data.draw(st.text("VLN.", min_size=positions, max_size=positions)) for _ in range(rows)]
    kv_heads, kv_group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    dim = data.draw(st.sampled_from([8, 24, 64, 80]))
    dtype = data.draw(st.sampled_from([FLOAT, BRAIN, HALF]))
    check(random_step(patterns, kv_heads * kv_group, kv_heads, dim, dtype), data.draw(st.integers(1, 3)))


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
def test_a_static_cache_and_other_layouts(heads, kv_heads):
    at = random_step(PATTERNS["padded"], heads, kv_heads, 64)
    expected, _ = partials(at)
    rows, _, positions, dim = at.key.shape
    layouts = []
    for states in (at.key, at.value):
        longer = torch.full((rows, kv_heads, 40, dim), torch.nan, device=DEVICE)
        longer[:, :, :positions] = states
        layouts.append(longer[:, :, :positions])
    key = at.key.transpose(1, 2).contiguous().transpose(1, 2)
    value = at.value.transpose(-1, -2).contiguous().transpose(-1, -2)
    query = torch.stack([at.query] * 3, dim=2)[:, :, 1]
    groups = groups_of([p + "VVV" for p in PATTERNS["padded"]])[:, :positions]
    for given_key, given_value in (layouts, (key, value)):
        other = type(at)(**{**vars(at), "query": query, "key": given_key, "value": given_value, "groups": groups})
        for one, two in zip(expected, partials(other)[0], strict=True):
            assert torch.equal(one.value, two.value)
            assert torch.equal(one.lse, two.lse)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("times", [30.0, 1e4])
def test_large_scores(times, heads, kv_heads):
    at = random_step(PATTERNS["long"], heads, kv_heads, 64)
    larger = type(at)(**{**vars(at), "query": at.query * times})
    # scores of thousands differ in their last bits: what matters is that nothing overflows
    found, _ = partials(larger, 2)
    for one, other in zip(found, torch_partials(larger), strict=True):
        assert torch.isfinite(one.value).all()
        torch.testing.assert_close(one.value, other.value, rtol=1e-3, atol=1e-3 * times / 30)
        torch.testing.assert_close(one.lse, other.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [FLOAT, BRAIN])
@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_capped_scores(cap, dtype):
    check(random_step(PATTERNS["neutral"], 4, 2, 64, dtype, softcap=cap))
    check(random_step(PATTERNS["neutral"], 2, 2, 64, dtype, softcap=cap))


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_in_the_keys_reaches_the_output_as_in_torch(bad, heads, kv_heads):
    at = random_step(["LVVVVVVLLLL", ".LLVVVVVVLL"], heads, kv_heads, 64)
    at.key[1, 0, 4, 7] = bad
    at.key[1, 0, 0, 3] = math.nan  # padding
    found, _ = partials(at)
    for one, other in zip(found, torch_partials(at), strict=True):
        torch.testing.assert_close(one.value, other.value, rtol=1e-5, atol=3e-6, equal_nan=True)
        torch.testing.assert_close(one.lse, other.lse, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.isfinite(found[1].value).all()
    torch.testing.assert_close(merge(found), merge(torch_partials(at)), rtol=1e-5, atol=3e-6, equal_nan=True)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
def test_nan_in_the_values_reaches_the_output_and_padding_never_does(heads, kv_heads):
    at = random_step(["LVVVVVVLLLL", ".LLVVVVVVLL"], heads, kv_heads, 64)
    at.value[1, 0, 0] = math.nan  # padding
    assert all(torch.isfinite(p.value).all() for p in partials(at)[0])
    at.value[1, 1, 5, 3] = math.nan
    out = merge(partials(at)[0])
    assert out[1, heads // 2 :, 3].isnan().all()
    assert torch.isfinite(out[0]).all()
    assert torch.isfinite(out[1, : heads // 2]).all()
