"""Soft-capped scores in real and counterfactual attention."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from heal.analysis.counterfactual import Attended, GaussianDraw, materialised_partials, noise_partials
from heal.analysis.information import scores_from_partials
from heal.analysis.moments import Moments
from heal.analysis.reference import attend, reference_output, reference_scores
from heal.analysis.split import Partial, merge
from tests.analysis.conftest import attended, cell, noise, where

CAP = 1.5


def with_cap(patterns: list[str], cap: float | None = CAP, kv_heads: int = 2, **options) -> Attended:
    at = attended(patterns, kv_heads=kv_heads, **options)
    return Attended(at.query * 2, at.key, at.value, at.regions, at.scale, cap)


def by_hand(at: Attended, row: int, head: int, inside: list[int]) -> tuple[np.ndarray, float]:
    query, keys, values = cell(at, row, head)
    scores = CAP * np.tanh(keys[inside] @ query * at.scale / CAP)
    weights = np.exp(scores)
    return weights @ values[inside] / weights.sum(), float(np.log(weights.sum()))


@pytest.mark.parametrize("patterns", [["LLVVVL", "LLVVVL"], ["..LVVL", "LVVVLL"]])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_partials_have_capped_scores(patterns: list[str], kv_heads: int) -> None:
    at = with_cap(patterns, kv_heads=kv_heads)
    for name, partial in enumerate(at.split()):
        for row, head in np.ndindex(2, 4):
            value, lse = by_hand(at, row, head, where(patterns[row], "VL"[name]))
            np.testing.assert_allclose(partial.value[row, head], value, atol=1e-5)
            assert float(partial.lse[row, head]) == pytest.approx(lse, abs=1e-5)
    assert not torch.allclose(merge(at.split()), merge(with_cap(patterns, None, kv_heads).split()), atol=1e-2)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_cap_that_is_never_reached_changes_nothing(covariance: Any) -> None:
    patterns = ["LLVVVVL", ".LVVLLL"]
    pairs = [
        noise_partials(at, Moments.of(at.key, at.value, at.regions), "gaussian", noise(), covariance)
        for at in (with_cap(patterns, 1e5), with_cap(patterns, None))
    ]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one.value, other.value, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one.lse, other.lse, atol=1e-4, rtol=1e-4)


def test_noise_scores_are_normal_and_then_capped() -> None:
    at = with_cap(["LLVVVVL"], kv_heads=4)
    draw = GaussianDraw.of(at, noise())
    partials = noise_partials(at, Moments.of(at.key, at.value, at.regions), "gaussian", noise())
    for head, name in np.ndindex(4, 2):
        query, keys, _ = cell(at, 0, head)
        inside = keys[where("LLVVVVL", "VL"[name])]
        spread = np.sqrt((query**2) @ inside.var(0))
        scores = (query @ inside.mean(0) + spread * draw.scores[name][head].double().numpy()) * at.scale
        expected = np.log(np.exp(CAP * np.tanh(scores / CAP)).sum())
        assert float(partials[name].lse[0, head]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_closed_form_and_materialised_noise_agree_in_distribution(covariance: str) -> None:
    """Every head is an independent draw of the same problem."""
    one, draws = with_cap(["LLVVVVVL"], heads=1, kv_heads=1), 2000
    query, key, value = (t.repeat_interleave(draws, 1) for t in (one.query, one.key, one.value))
    at = Attended(query, key, value, one.regions, one.scale, CAP)
    moments = Moments.of(key, value, at.regions)

    def sample(ways: Callable[..., list[Partial]], seed: int) -> torch.Tensor:
        partials = ways(at, moments, "gaussian", noise(seed), covariance)
        return torch.cat([torch.cat([p.value[0], p.lse[0, :, None]], -1) for p in partials], -1)

    fast, slow = sample(noise_partials, 0), sample(materialised_partials, 1)
    error = ((fast.var(0) + slow.var(0)) / draws).sqrt()
    assert ((fast.mean(0) - slow.mean(0)).abs() / error).max() < 4
    assert (fast.std(0) / slow.std(0)).log().abs().max() < 0.1
    uncapped = Attended(query, key, value, one.regions, one.scale)
    at = uncapped
    assert ((fast.mean(0) - sample(materialised_partials, 1).mean(0)).abs() / error).max() > 10


@pytest.mark.parametrize("masking", ["zero", "swap"])
def test_both_paths_agree(masking: Any) -> None:
    at = with_cap(["..LVVLL", "LLVVVLL"])
    fake = noise_partials(at, Moments.of(at.key, at.value, at.regions), masking, noise())
    fast, slow = scores_from_partials(at.split(), fake), reference_scores(at, masking, noise(), "diagonal", "cosine")
    for name in ("visual", "language", "total"):
        torch.testing.assert_close(getattr(fast, name), getattr(slow, name), rtol=0, atol=2e-6)
    beta, gamma = torch.rand(2, 2, 4) + 0.5
    torch.testing.assert_close(merge(at.split(), [beta, gamma]), reference_output(at, beta, gamma), rtol=0, atol=1e-5)
    whole = attend(at.query, at.key, at.value, at.regions.masks.any(1), at.scale, CAP)
    torch.testing.assert_close(merge(at.split()), whole, rtol=0, atol=1e-5)
