import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from heal.analysis import split
from heal.analysis.split import LANGUAGE, NEUTRAL, VISUAL, Partial, Regions, attention_scores, merge
from tests.analysis.conftest import LETTERS, attended, cell, examples, masks_of, plain, where
from tests.known import known

GROUPS = [(4, 4), (4, 2), (6, 1)]
PATTERNS = {
    "even": ["LVVVLLL", "LVVVLLL"],
    "several spans": ["LVVLVVL"],
    "padded left": ["...LVVVLL", "LVVVLLLLL", ".LVVVVVVL"],
    "common padding": ["..LVVL", "..LVVL"],
    "neutral": ["NLVVVLNL", "NLVVVLNL"],
    "neutral, padded": ["..NLVVLL", "NLVVVVLL"],
    "a row of text": ["...LLLL", "LVVVLLL"],
    "only text": ["LLLLL", "LLLLL"],
    "only image, padded": ["..VVV", "VVVVV"],
}
every_pattern = pytest.mark.parametrize("patterns", PATTERNS.values(), ids=PATTERNS)
every_group = pytest.mark.parametrize(("heads", "kv_heads"), GROUPS)


def problem(patterns, heads=4, kv_heads=2, seed=0, dtype=torch.float32):
    return attended(patterns, heads, kv_heads, groups=3 if "N" in "".join(patterns) else 2, seed=seed, dtype=dtype)


def masks_only(regions: Regions) -> Regions:
    return Regions(regions.masks, regions.counts, None)


def by_masks(at) -> list[Partial]:
    return type(at)(at.query, at.key, at.value, masks_only(at.regions), at.scale).split()


# ── partials ─────────────────────────────────────────────────────────────────────────────────────────────


@every_pattern
@every_group
def test_a_partial_is_attention_over_its_group_only(patterns, heads, kv_heads):
    at = problem(patterns, heads, kv_heads)
    for partials in (at.split(), by_masks(at)):
        assert len(partials) == at.regions.group_count
        for name, partial in enumerate(partials):
            for row, pattern in enumerate(patterns):
                for head in range(heads):
                    query, keys, values = cell(at, row, head)
                    inside = where(pattern, LETTERS[name])
                    value, lse = plain(query, keys[inside], values[inside], at.scale)
                    np.testing.assert_allclose(partial.value[row, head], value, rtol=1e-5, atol=1e-5)
                    np.testing.assert_allclose(partial.lse[row, head], lse, rtol=1e-5, atol=1e-5)


@every_pattern
def test_fused_kernel_and_products_agree(patterns, monkeypatch):
    at = problem(patterns, 4, 4)
    fused = at.split()
    monkeypatch.setattr(split, "FUSED", None)
    for one, other in zip(fused, at.split(), strict=True):
        torch.testing.assert_close(one.value, other.value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one.lse, other.lse, rtol=1e-5, atol=1e-6)


def test_fused_kernel_runs_once_for_each_span_or_once_for_shared_keys(monkeypatch):
    calls = []
    kernel = known(split.FUSED)

    def counted(*args, **options):
        calls.append(args)
        return kernel(*args, **options)

    monkeypatch.setattr(split, "FUSED", counted)
    problem(PATTERNS["several spans"], 4, 4).split()
    assert len(calls) == 5
    problem(PATTERNS["several spans"], 4, 2).split()  # one call with masks
    assert len(calls) == 6
    problem(PATTERNS["padded left"], 4, 4).split()
    assert len(calls) == 6


@every_pattern
@every_group
def test_merged_partials_equal_torch_attention(patterns, heads, kv_heads):
    at = problem(patterns, heads, kv_heads)
    expected = F.scaled_dot_product_attention(
        at.query[:, :, None],
        at.key,
        at.value,
        attn_mask=at.regions.masks.any(1)[:, None, None],
        scale=at.scale,
        enable_gqa=True,
    ).squeeze(2)
    torch.testing.assert_close(merge(at.split()), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merge(by_masks(at)), expected, rtol=1e-5, atol=1e-5)


def test_slices_and_masks_give_the_same_partials():
    for patterns in (["NLVVLVNLL"] * 3, ["..VVLL"] * 2, ["LLL"] * 2):
        at = problem(patterns)
        assert at.regions.spans is not None
        for one, other in zip(at.split(), by_masks(at), strict=True):
            torch.testing.assert_close(one.value, other.value, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(one.lse, other.lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("patterns", [["LLL", "LLL"], ["LLL", "LVV"]], ids=["slices", "masks"])
def test_an_empty_group_has_no_effect(patterns):
    at = problem(patterns)
    assert (at.regions.spans is None) == (patterns[0] != patterns[1])
    partial = at.split()[VISUAL]
    assert torch.equal(partial.value[0], torch.zeros_like(partial.value[0]))
    assert torch.equal(partial.lse[0], torch.full_like(partial.lse[0], -torch.inf))
    torch.testing.assert_close(merge(at.split())[0], at.split()[LANGUAGE].value[0], rtol=0, atol=0)


def test_attention_over_nothing_is_zero():
    at = problem(["...", "VLL"])
    assert torch.equal(merge(at.split())[0], torch.zeros(4, 8))
    assert torch.equal(merge(problem(["...", "..."]).split()), torch.zeros(2, 4, 8))


def test_nan_is_not_hidden():
    at = problem(["VVLLL", "VVLLL"])
    at.key[0, :, 1, 3] = torch.nan
    for partials in (at.split(), by_masks(at)):
        out = merge(partials)
        assert out[0].isnan().all()
        assert out[1].isfinite().all()


# ── range and precision ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("spans", [True, False], ids=["slices", "masks"])
def test_a_group_with_much_lower_scores_keeps_its_value(spans):
    # e^{-300} underflows: with one maximum for both groups, all visual weights would be zero
    at = attended(["VVVLLLL", "VVVLLLL"], heads=1, kv_heads=1)
    shift = 300 / at.scale / torch.linalg.vector_norm(at.query[:, 0], dim=-1)
    direction = F.normalize(at.query[:, 0], dim=-1)
    at.key[:, 0, :3] -= (shift[:, None] * direction)[:, None]
    partials = at.split() if spans else by_masks(at)
    for row in range(2):
        query, keys, values = cell(at, row, 0)
        value, lse = plain(query, keys[:3], values[:3], at.scale)
        assert lse < partials[LANGUAGE].lse[row, 0] - 280
        np.testing.assert_allclose(partials[VISUAL].value[row, 0], value, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(partials[VISUAL].lse[row, 0], lse, rtol=1e-5)
    torch.testing.assert_close(merge(partials), partials[LANGUAGE].value, rtol=0, atol=0)
    weaker = Partial(partials[LANGUAGE].value, partials[VISUAL].lse - 50)
    torch.testing.assert_close(merge([partials[VISUAL], weaker]), partials[VISUAL].value)


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_scores_of_any_size_do_not_overflow(offset):
    partials = problem(["VVLLL"]).split()
    moved = [Partial(p.value, p.lse + offset) for p in partials]
    torch.testing.assert_close(merge(moved), merge(partials), rtol=0, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_give_full_precision_scores(dtype):
    at = attended(["V" * 20 + "L" * 20] * 2, dim=64, dtype=dtype)
    scores = attention_scores(at.query, at.key, at.scale)
    assert scores.dtype == torch.float32
    truth = np.array(
        [
            [
                [cell(at, r, 2 * kv + g)[1] @ cell(at, r, 2 * kv + g)[0] * at.scale for g in range(2)]
                for kv in range(2)
            ]
            for r in range(2)
        ]
    )
    in_half = torch.matmul(at.query.view(2, 2, 2, 64), at.key.transpose(-1, -2)).double().numpy() * at.scale
    assert np.abs(scores.numpy() - truth).max() < 1e-5
    assert np.abs(in_half - truth).max() > 1e-4  # the error without fp32 scores
    for name, partial in enumerate(at.split()):
        assert partial.value.dtype == torch.float32
        query, keys, values = cell(at, 1, 3)
        inside = where("V" * 20 + "L" * 20, LETTERS[name])
        np.testing.assert_allclose(
            partial.value[1, 3], plain(query, keys[inside], values[inside], at.scale)[0], atol=1e-5
        )


# ── factors ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("patterns", [["NLVVVLL", "NLVVVLL"], ["..NLVVL", "NLVVVLL"]], ids=["slices", "masks"])
@every_group
def test_factors_equal_scaled_values(patterns, heads, kv_heads):
    at = problem(patterns, heads, kv_heads)
    beta, gamma = torch.rand(2, 2, heads, generator=torch.Generator().manual_seed(1)) * 3
    out = merge(at.split(), [beta, gamma, None])
    for row, pattern in enumerate(patterns):
        for head in range(heads):
            query, keys, values = cell(at, row, head)
            values = values.copy()
            values[where(pattern, "V")] *= float(beta[row, head])
            values[where(pattern, "L")] *= float(gamma[row, head])
            valid = where(pattern, LETTERS)
            expected = plain(query, keys[valid], values[valid], at.scale)[0]
            np.testing.assert_allclose(out[row, head], expected, rtol=1e-5, atol=1e-5)


def test_factors_of_one_change_nothing():
    partials = problem(["..NLVVL", "NLVVVLL"]).split()
    one = torch.ones(2, 4)
    assert torch.equal(merge(partials, [one, one, one]), merge(partials))
    assert torch.equal(merge(partials, [None, None, None]), merge(partials))
    assert not torch.equal(merge(partials, [None, 2 * one, None]), merge(partials))


# ── regions ──────────────────────────────────────────────────────────────────────────────────────────────


def assert_consistent(regions: Regions, groups: list[list[int]]) -> None:
    """Masks, counts and spans agree with `groups` [row][position]."""
    for row, told in enumerate(groups):
        assert len(told) == regions.length
        for name in range(regions.group_count):
            assert regions.masks[row, name].tolist() == [group == name for group in told]
            assert regions.counts[row][name] == told.count(name)
    if regions.spans is None:
        return
    from_spans = [-1] * regions.length
    for start, stop, group in regions.spans:
        assert start < stop
        for j in range(start, stop):
            assert from_spans[j] == -1
            from_spans[j] = group
    assert all(told == from_spans for told in groups)


def regions_of(groups: list[list[int]], count: int) -> Regions:
    return Regions.of(torch.tensor([[[o == m for o in told] for m in range(count)] for told in groups]))


@st.composite
def group_rows(draw) -> list[list[int]]:
    """Rows of groups that often agree, so that spans are as common as masks."""
    length = draw(st.integers(1, 9))
    one = st.lists(st.integers(-1, NEUTRAL), min_size=length, max_size=length)
    rows = draw(st.integers(1, 3))
    if draw(st.booleans()):
        return [draw(one)] * rows
    return [draw(one) for _ in range(rows)]


@given(group_rows(), st.integers(1, 9))
@examples(150)
def test_extending_one_position_at_a_time_equals_of(groups, start):
    start = min(start, len(groups[0]))
    regions = regions_of([told[:start] for told in groups], 3)
    assert_consistent(regions, [told[:start] for told in groups])
    for j in range(start, len(groups[0])):
        regions = regions.extended([told[j] for told in groups])
        expected = regions_of([told[: j + 1] for told in groups], 3)
        assert_consistent(regions, [told[: j + 1] for told in groups])
        assert torch.equal(regions.masks, expected.masks)
        assert (regions.counts, regions.spans) == (expected.counts, expected.spans)


@given(group_rows(), st.data())
@examples(100)
def test_selected_rows_stay_consistent(groups, data):
    rows = data.draw(st.lists(st.integers(0, len(groups) - 1), min_size=1, max_size=4))
    group = data.draw(st.integers(-1, NEUTRAL))
    regions = regions_of(groups, 3)
    chosen = regions.select(rows)
    assert_consistent(chosen, [groups[r] for r in rows])
    assert (chosen.spans is None) == (regions.spans is None)
    assert_consistent(chosen.extended([group] * len(rows)), [[*groups[r], group] for r in rows])


def test_spans_exist_exactly_when_all_rows_agree():
    same = Regions.of(masks_of(["LVV.LN", "LVV.LN"], 3))
    assert same.spans == ((0, 1, LANGUAGE), (1, 3, VISUAL), (4, 5, LANGUAGE), (5, 6, NEUTRAL))
    assert Regions.of(masks_of(["LVVLL", ".VVLL"])).spans is None
    assert same.extended([LANGUAGE, VISUAL]).spans is None
    assert same.extended([-1, -1]).spans == same.spans


def test_numbers_about_regions():
    regions = Regions.of(masks_of(["..LVVLN", "LVVVVLN"], 3))
    assert (regions.length, regions.group_count) == (7, 3)
    assert regions.counts == ((2, 2, 1), (4, 2, 1))
    assert [regions.longest(m) for m in range(3)] == [4, 2, 1]
    assert [regions.even(m) for m in range(3)] == [False, True, True]
