"""Scores at rounding level are set to zero, and fp32 scores are close enough to float64 scores for that."""

import numpy as np
import pytest
import torch

from heal.analysis.calibration import factors
from heal.analysis.counterfactual import Attended, GaussianDraw, noise_partials
from heal.analysis.information import DEAD_ZONE, HeadScores, difference_in_differences, scores_from_partials
from heal.analysis.moments import Moments
from heal.analysis.reference import reference_scores
from heal.analysis.split import Regions
from heal.analysis.step import LayerStep, step
from heal.analysis.taxonomy import HeadType, classify
from tests.analysis.conftest import CPU, attended, cell, masks_of, noise, plain, sim, where


def sharpened(patterns: list[str], sharp: float, seed: int, dtype: torch.dtype = torch.float32) -> Attended:
    at = attended(patterns, heads=8, kv_heads=4, dim=16, seed=seed, dtype=dtype)
    return Attended(at.query * sharp, at.key, at.value, at.regions, at.scale)


def fast_scores(at: Attended, seed: int = 0) -> HeadScores:
    return scores_from_partials(
        at.split(), noise_partials(at, Moments.of(at.key, at.value, at.regions), "gaussian", noise(seed))
    )


def exact_scores(at: Attended, pattern: str, seed: int) -> np.ndarray:
    """[3 (visual, language, total), heads] of one row in double precision, for each head, from the same noise."""
    draw = GaussianDraw.of(at, noise(seed))
    out = np.zeros((3, at.query.shape[1]))
    for head in range(out.shape[1]):
        query, keys, values = cell(at, 0, head)
        worlds = []
        for name, letter in enumerate("VL"):
            k, v = (t[where(pattern, letter)] for t in (keys, values))
            real = plain(query, k, v, at.scale)
            normals = draw.scores[name][head].double().numpy()
            scores = (query @ k.mean(0)) * at.scale + np.sqrt((query**2) @ k.var(0)) * at.scale * normals
            weights = np.exp(scores - scores.max())
            spread = np.sqrt((weights**2).sum()) / weights.sum()
            value = v.mean(0) + v.std(0) * draw.samples[name, head].double().numpy() * spread
            worlds.append((real, (value, np.log(weights.sum()) + scores.max())))

        def state(a: int, b: int, worlds: list = worlds) -> np.ndarray:
            (one, x), (other, y) = worlds[0][a], worlds[1][b]
            share = np.exp(x - np.logaddexp(x, y))
            return share * one + (1 - share) * other

        neither = sim(state(0, 0), state(1, 1))
        out[:, head] = sim(state(0, 0), state(0, 1)) - neither, sim(state(0, 0), state(1, 0)) - neither, 1 - neither
    return out


# ── inside the zone ──────────────────────────────────────────────────────────────────────────────────────

INSIDE, OUTSIDE = 0.9 * DEAD_ZONE, 1.1 * DEAD_ZONE


@pytest.mark.parametrize("tiny", [INSIDE, -INSIDE, 3e-8, -3e-8, DEAD_ZONE])
def test_a_score_inside_the_zone_is_zero_wherever_it_is_used(tiny: float) -> None:
    visual = torch.tensor([[[tiny, 0.1, tiny, 0.1]]])
    language = torch.tensor([[[0.1, tiny, tiny, 0.1]]])
    scores = HeadScores(visual, language, torch.full_like(visual, 0.3))
    assert (scores.visual == 0).tolist() == [[[True, False, True, False]]]
    assert (scores.language == 0).tolist() == [[[False, True, True, False]]]
    assert scores.alpha_vis.isnan().tolist() == [[[True, True, True, False]]]
    types = classify(scores, torch.zeros_like(visual, dtype=torch.bool)).types[0, 0].tolist()
    assert types == [HeadType.LANGUAGE, HeadType.VISUAL, HeadType.INFO_REDUNDANT, HeadType.SYNERGY]
    beta, gamma = factors(scores.visual, scores.language, torch.ones_like(visual, dtype=torch.bool), 0.7, 2.0)
    assert beta[0, 0, :3].tolist() == gamma[0, 0, :3].tolist() == [1, 1, 1]
    assert beta[0, 0, 3] != 1


def test_scores_outside_the_zone_are_unchanged() -> None:
    values = torch.tensor([OUTSIDE, -OUTSIDE, 0.5, torch.nan])
    scores = HeadScores(values, values.clone(), torch.ones(4))
    torch.testing.assert_close(scores.visual, values, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(scores.language, values, rtol=0, atol=0, equal_nan=True)
    assert HeadScores(torch.zeros(1), torch.zeros(1), torch.tensor([INSIDE])).total == INSIDE


@pytest.mark.parametrize("pattern", ["VVVVVVL", "LLLLLLV", "VL"])
@pytest.mark.parametrize("sharp", [1.0, 5.0, 30.0])
def test_a_group_of_one_token_has_no_information(pattern: str, sharp: float) -> None:
    """Its noise has no variance, so the counterfactual state equals the real one."""
    alone = [letter for letter in "VL" if pattern.count(letter) == 1]
    for seed in range(10):
        at = sharpened([pattern], sharp, seed)
        for scores in (
            fast_scores(at, seed),
            reference_scores(at, "gaussian", noise(seed), "diagonal", "cosine"),
        ):
            assert "V" not in alone or not scores.visual.any()
            assert "L" not in alone or not scores.language.any()


def test_moments_of_one_remaining_position_have_no_variance() -> None:
    """The square root of the rounding error would be a standard deviation of 1e-4."""
    at = attended(["VVLL"], dim=16)
    moments = Moments.of(at.key, at.value, at.regions)
    moments.remove(at.key[:, :, 3], at.value[:, :, 3], torch.tensor([[False, True]]))
    assert moments.count.tolist() == [[2, 1]]
    assert not moments.squared[:, 1].any()
    assert moments.squared[:, 0].all()


# ── how large rounding is ────────────────────────────────────────────────────────────────────────────────

PATTERN = "LLVVVVVVVVVVVVVVVVLLLLLL"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sharp", [1.0, 5.0, 30.0])
def test_errors_of_small_scores_are_much_smaller_than_the_zone(sharp: float, dtype: torch.dtype) -> None:
    fast, exact = [], []
    for seed in range(12):
        at = sharpened([PATTERN], sharp, seed, dtype)
        states = fast_scores(at, seed)
        fast.append(torch.stack([states.visual[0], states.language[0]]).double().numpy())
        exact.append(exact_scores(at, PATTERN, seed)[:2])
    found, right = np.concatenate(fast, 1), np.concatenate(exact, 1)
    small = np.abs(right) < 1e-4
    assert sharp < 30 or (np.abs(right) < 1e-7).sum() > 10
    # errors that change the sign are 2e-7 or more; a score set to zero is off by at most the zone
    kept = small & (found != 0)
    assert np.abs(found - right)[kept].max(initial=0) < 0.2 * DEAD_ZONE
    assert (found[np.abs(right) < 0.8 * DEAD_ZONE] == 0).all()
    outside = np.abs(right) > 1.2 * DEAD_ZONE
    np.testing.assert_array_equal(np.sign(found[outside]), np.sign(right[outside]))


def test_states_that_differ_by_rounding_carry_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(2000, 16, generator=generator)
    one, two, three = (base * (1 + 6e-8 * torch.randint(-1, 2, base.shape, generator=generator)) for _ in range(3))
    scores = difference_in_differences(base, one, two, three)
    assert not scores.visual.any()
    assert not scores.language.any()


def test_the_compiled_step_has_the_same_zone() -> None:
    query, key, value = _one_language_token()
    at = Attended(query, key, value, Regions.of(masks_of(["VVVVVVL"])), 0.25)
    moments, draw = Moments.of(at.key, at.value, at.regions), GaussianDraw.of(at, noise())
    everything = torch.ones(1, 8, dtype=torch.bool)
    visual, language, _, beta, gamma, _ = step(
        LayerStep(
            query=at.query,
            scale=0.25,
            softcap=None,
            mean=moments.mean,
            squared=moments.squared,
            draw=draw,
            real=at.split(),
            calibrated=everything,
            target=0.7,
            limit=2.0,
            one_sided=False,
            measure="cosine",
        )
    )
    assert visual.all()
    assert not language.any()
    assert (beta == 1).all()
    assert (gamma == 1).all()


def _one_language_token() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(CPU).manual_seed(1)
    return (
        torch.randn(1, 8, 16, generator=generator),
        torch.randn(1, 4, 7, 16, generator=generator),
        torch.randn(1, 4, 7, 16, generator=generator),
    )
