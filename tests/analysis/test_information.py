import math
from typing import Any

import numpy as np
import pytest
import torch

from heal.analysis.counterfactual import materialise, materialised_partials, noise_partials
from heal.analysis.information import (
    MEASURES,
    HeadScores,
    difference_in_differences,
    mean_scores,
    scores_from_partials,
    similarity,
)
from heal.analysis.moments import Moments
from tests.analysis.conftest import attended, cell, noise, plain, sim, where

every_measure = pytest.mark.parametrize("measure", MEASURES)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(a: np.ndarray, b: np.ndarray, measure: str) -> float:
    norms = float(np.linalg.norm(a) + np.linalg.norm(b))
    l2 = 2 * sigmoid(-float(np.linalg.norm(a - b)) / norms if norms else 0.0)
    return {"cosine": sim(a, b), "l2": l2, "cosine+l2": (sim(a, b) + l2) / 2}[measure]


def vectors(*shape: int, seed: int = 0, number: int = 4) -> torch.Tensor:
    return torch.randn(number, *shape, generator=torch.Generator().manual_seed(seed))


def one(a: list[float], b: list[float], measure: Any) -> float:
    first, second = torch.tensor([a, b], dtype=torch.float32)
    return float(similarity(first, second, measure))


# ── similarity ───────────────────────────────────────────────────────────────────────────────────────────


def test_cosine_by_hand():
    assert one([1, 0], [5, 0], "cosine") == 1
    assert one([1, 0], [-2, 0], "cosine") == 0
    assert one([1, 0], [0, 3], "cosine") == 0.5
    assert one([1, 0], [1, 1], "cosine") == pytest.approx((1 + 0.5**0.5) / 2, abs=1e-7)


def test_l2_by_hand():
    assert one([3, 0], [0, 4], "l2") == pytest.approx(2 * sigmoid(-5 / 7), abs=1e-7)
    assert one([1, 2], [-1, -2], "l2") == pytest.approx(2 * sigmoid(-1), abs=1e-7)
    assert one([1, 0], [3, 0], "l2") == pytest.approx(2 * sigmoid(-0.5), abs=1e-7)


def test_cosine_and_l2_is_their_mean():
    assert one([3, 0], [0, 4], "cosine+l2") == pytest.approx((0.5 + 2 * sigmoid(-5 / 7)) / 2, abs=1e-7)


@every_measure
def test_similarity_equals_a_loop(measure):
    a, b = vectors(3, 5, 8, number=2)
    found = similarity(a, b, measure)
    assert found.shape == (3, 5)
    for at in np.ndindex(3, 5):
        expected = by_hand(a[at].double().numpy(), b[at].double().numpy(), measure)
        assert float(found[at]) == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(found, similarity(b, a, measure))
    assert ((found > 0) & (found < 1)).all()


@every_measure
def test_equal_vectors_give_one(measure):
    a = vectors(6, 16)[0]
    torch.testing.assert_close(similarity(a, a, measure), torch.ones(6), rtol=0, atol=3e-7)
    assert (similarity(a, a, measure) <= 1).all()


@every_measure
def test_half_precision_is_computed_in_fp32(measure):
    a, b = vectors(3, 64, number=2).bfloat16()
    assert torch.equal(similarity(a, b, measure), similarity(a.float(), b.float(), measure))


def test_a_zero_vector_is_orthogonal_to_everything():
    assert one([0, 0], [1, 2], "cosine") == 0.5
    assert one([0, 0], [0, 0], "cosine") == 0.5
    assert one([0, 0], [1, 2], "l2") == pytest.approx(2 * sigmoid(-1), abs=1e-7)
    assert one([0, 0], [0, 0], "l2") == 1
    assert one([0, 0], [0, 0], "cosine+l2") == 0.75


@pytest.mark.parametrize("size", [1e-15, 1e15])
@every_measure
def test_similarity_does_not_depend_on_the_scale(measure, size):
    a, b = vectors(5, 8, number=2)
    torch.testing.assert_close(similarity(a * size, b * size, measure), similarity(a, b, measure))


# ── scores ───────────────────────────────────────────────────────────────────────────────────────────────


def test_difference_in_differences_by_hand():
    # cosines with h11: h01 0.6, h10 0.8, h00 0
    h11, h01, h10, h00 = (torch.tensor(v) for v in ([1.0, 0.0], [3.0, 4.0], [4.0, -3.0], [0.0, 2.0]))
    scores = difference_in_differences(h11, h01, h10, h00)
    assert float(scores.visual) == pytest.approx(0.9 - 0.5)
    assert float(scores.language) == pytest.approx(0.8 - 0.5)
    assert float(scores.total) == pytest.approx(0.5)
    assert float(scores.synergy) == pytest.approx(0.5 - 0.4 - 0.3)
    assert float(scores.alpha_vis) == pytest.approx(4 / 7)


@every_measure
def test_every_score_is_its_formula(measure):
    states = vectors(2, 3, 8)
    real, no_vision, no_language, neither = states
    scores = difference_in_differences(real, no_vision, no_language, neither, measure=measure)
    for at in np.ndindex(2, 3):
        h11, h01, h10, h00 = (state[at].double().numpy() for state in states)
        s01, s10, s00 = (by_hand(h11, other, measure) for other in (h01, h10, h00))
        assert float(scores.visual[at]) == pytest.approx(s10 - s00, abs=1e-6)
        assert float(scores.language[at]) == pytest.approx(s01 - s00, abs=1e-6)
        assert float(scores.total[at]) == pytest.approx(1 - s00, abs=1e-6)
        assert float(scores.synergy[at]) == pytest.approx(1 - s10 - s01 + s00, abs=1e-6)


@every_measure
def test_without_replacement_there_is_no_information(measure):
    real = attended(["..NLVVVL", "NLVVVLLL", "NLLLLLLL"], groups=3).split()
    scores = scores_from_partials(real, real[:2], measure)
    assert not scores.visual.any()
    assert not scores.language.any()
    torch.testing.assert_close(scores.total, torch.zeros(3, 4), rtol=0, atol=3e-7)


def test_a_row_without_an_image_has_only_language_information():
    at = attended(["LLLLLL", "LVVVLL"])
    fake = noise_partials(at, Moments.of(at.key, at.value, at.regions), "gaussian", noise())
    scores = scores_from_partials(at.split(), fake)
    assert not scores.visual[0].any()
    torch.testing.assert_close(scores.language[0], scores.total[0], rtol=0, atol=3e-7)
    assert (scores.total[0] > 1e-3).all()
    assert scores.visual[1].any()


@every_measure
@pytest.mark.parametrize("masking", ["zero", "gaussian", "uniform", "swap"])
@pytest.mark.parametrize("neutral", [False, True])
def test_scores_from_partials_equal_those_of_the_concatenated_states(masking, measure, neutral):
    patterns = ["..NLVVVLL", "NLVVVVVLL", "NLLLLLLLL"] if neutral else ["...LVVVLL", ".LVVVVVLL", "LLLLLLLLL"]
    at = attended(patterns, heads=4, kv_heads=2, groups=3 if neutral else 2)
    moments = Moments.of(at.key, at.value, at.regions)
    fake_key, fake_value, _ = materialise(at, moments, masking, noise(), "diagonal")
    fake_patterns = [patterns[row - 1] for row in range(3)] if masking == "swap" else patterns
    partials = materialised_partials(at, moments, masking, noise())
    scores = scores_from_partials(at.split(), partials, measure)
    for row, head in np.ndindex(3, 4):
        query, keys, values = cell(at, row, head)
        noisy = [t[row, head // 2].double().numpy() for t in (fake_key, fake_value)]

        def part(letter, real, row=row, states=((keys, values), noisy)):
            inside = where((patterns if real else fake_patterns)[row], letter)
            return [t[inside] for t in states[0 if real else 1]]

        def state(visual, language, part=part, query=query):
            parts = [part("V", visual), part("L", language), part("N", True)]
            keys, values = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
            return plain(query, keys, values, at.scale)[0]

        h11 = state(True, True)
        s01, s10, s00 = (
            by_hand(h11, state(*real), measure) for real in ((False, True), (True, False), (False, False))
        )
        assert float(scores.visual[row, head]) == pytest.approx(s10 - s00, abs=2e-6)
        assert float(scores.language[row, head]) == pytest.approx(s01 - s00, abs=2e-6)
        assert float(scores.total[row, head]) == pytest.approx(1 - s00, abs=2e-6)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────


def test_mean_scores_average_each_score():
    draws = [HeadScores(*vectors(2, 3, seed=seed, number=3)) for seed in range(5)]
    mean = mean_scores(draws)
    for name in ("visual", "language", "total", "synergy"):
        expected = sum(getattr(d, name).double() for d in draws) / 5
        torch.testing.assert_close(getattr(mean, name).double(), expected, rtol=0, atol=1e-6)
    assert mean_scores(draws[:1]) is draws[0]


def test_alpha_vis_is_nan_unless_the_head_is_mixed():
    visual = torch.tensor([0.3, 0.3, 0.0, -0.1, 0.2, -0.2, 0.2])
    language = torch.tensor([0.1, 0.3, 0.2, 0.2, 0.0, -0.1, -0.1])
    alpha = HeadScores(visual, language, visual + language).alpha_vis
    assert alpha.isnan().tolist() == [False, False, True, True, True, True, True]
    torch.testing.assert_close(alpha[:2], torch.tensor([0.75, 0.5]))
