"""The whole step of the kernels against heal.analysis."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heal.analysis.information import MEASURES
from heal.analysis.moments import Moments
from heal.kernels.fused import fused_step
from tests.kernels.problems import goals, random_step, regions_of, torch_step

PATTERNS = {
    "two groups": ["LVVVVVVLLLL", "LLLLVVVVVLL"],
    "neutral": ["NLVVVVVLLNL", "..VVVNLLLLN"],
    "padded": ["....LVVVVLL", ".LVVLVLLLLV"],
    "only text": ["LLLLLLLLLLL", "..LLLVVLLLL"],
}


def check(at, parts=1):
    expected = torch_step(at)
    found = fused_step(at, parts)
    for name in ("count", "mean", "squared"):
        torch.testing.assert_close(getattr(at.moments, name), getattr(expected.moments, name), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scores.double(), expected.scores, rtol=1e-5, atol=2e-6)
    # factors divide by scores, which may be small
    exact = expected.scores[..., :2].abs().amin(-1) > 1e-3
    torch.testing.assert_close(found.factors[exact].double(), expected.factors[exact], rtol=2e-3, atol=1e-5)
    precision = {torch.float32: 2e-3, torch.float16: 2e-3, torch.bfloat16: 1e-2}[at.query.dtype]
    assert found.outputs.dtype == at.query.dtype
    torch.testing.assert_close(found.plain.float(), expected.plain, rtol=precision, atol=precision)
    torch.testing.assert_close(found.out[exact].float(), expected.out[exact], rtol=precision, atol=precision)
    unchanged = (found.factors == 1).all(-1)
    assert torch.equal(found.out[unchanged], found.plain[unchanged])
    return found


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(2, 2, 64), (4, 2, 80)])
@pytest.mark.parametrize("patterns", PATTERNS.values(), ids=PATTERNS)
def test_a_step_is_that_of_torch(patterns, heads, kv_heads, dim, parts):
    check(random_step([p[:2] + p[2:] * 6 for p in patterns], heads, kv_heads, dim), parts)


@pytest.mark.parametrize("measure", MEASURES)
def test_measures(measure):
    for name, heads in (("neutral", 4), ("two groups", 2)):
        check(random_step(PATTERNS[name], heads, 2, 64, measure=measure))


@pytest.mark.parametrize("options", [{"limit": 1.5}, {"one_sided": True}, {"limit": 2.0, "one_sided": True}], ids=str)
def test_limits_and_sides(options):
    for targets in (goals(0.3), goals(0.2, 0.4, 0.6, 0.8)):
        check(random_step(PATTERNS["padded"], 4, 2, 64, targets=targets, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_half_precision(dtype, kv_heads):
    check(random_step(PATTERNS["neutral"], 4, kv_heads, 128, dtype))


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=5)
def test_any_step(data):
    positions, rows = data.draw(st.integers(2, 40)), data.draw(st.integers(1, 2))
    # the newest position is always attended
    patterns = [data.draw(st.text("VLN.", min_size=positions, max_size=positions)) + "L" for _ in range(rows)]
    kv_heads, kv_group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 5))
    measure = data.draw(st.sampled_from(MEASURES))
    check(random_step(patterns, kv_heads * kv_group, kv_heads, 24, measure=measure), data.draw(st.integers(1, 2)))


def test_moments_are_added_only_when_asked():
    at = random_step(PATTERNS["padded"], 2, 2, 64)
    complete = Moments.of(at.key, at.value, regions_of(at.groups, at.neutral))
    first = fused_step(at)
    stored = [t.clone() for t in (complete.count, complete.mean, complete.squared)]
    second = fused_step(replace(at, moments=complete, append=False))
    assert all(map(torch.equal, stored, (complete.count, complete.mean, complete.squared)))
    torch.testing.assert_close(at.moments.mean, complete.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first.results, second.results, rtol=1e-4, atol=1e-5)


def test_heads_that_are_not_calibrated_keep_every_bit():
    at = random_step(PATTERNS["neutral"], 4, 2, 64)
    plain = fused_step(replace(at, least=torch.full_like(at.least, math.inf), append=False))
    some = fused_step(replace(at, append=False))
    assert torch.equal(plain.out, plain.plain)
    assert torch.equal(plain.plain, some.plain)
    changed = (some.out != some.plain).any(-1)
    assert changed.any()
    assert torch.equal(changed, (some.factors != 1).any(-1))
    assert not changed[at.least == math.inf].any()


def test_a_slice_of_the_chosen_heads_of_all_layers():
    at = random_step(PATTERNS["two groups"], 4, 2, 64)
    layers = torch.stack([1 - at.least, at.least], dim=1)
    expected = fused_step(replace(at, append=False))
    assert torch.equal(fused_step(replace(at, least=layers[:, 1], append=False)).out, expected.out)


def test_nan_in_the_keys_stays_in_its_row_and_leaves_factors_at_one():
    at = random_step(PATTERNS["two groups"], 4, 2, 64, append=False)
    expected = fused_step(at)
    at.key[0, 1, 3, 5] = math.nan
    found = fused_step(at)
    assert found.out[0, 2:].isnan().all()
    assert torch.equal(found.out[1], expected.out[1])
    assert torch.equal(found.out[0, :2], expected.out[0, :2])
    assert (found.factors[0, 2:] == 1).all()


@pytest.mark.parametrize("times", [30.0, 1e4])
def test_large_scores(times):
    at = random_step(PATTERNS["padded"], 4, 2, 64, append=False)
    found = fused_step(replace(at, query=at.query * times), 2)
    assert torch.isfinite(found.outputs).all()
    assert torch.isfinite(found.results).all()
    assert (found.scores[..., 2] >= 0).all()
    assert (found.scores[..., 2] <= 1).all()
