"""Similarity to visual tokens: the summaries against loops, padding, beams, and prompts without visual tokens."""

import numpy as np
import pytest
import torch
from torch import Tensor

from heal.analysis.depths import TOP
from heal.analysis.similarity import VisualStates

POSITIONS, DEPTHS, DIM = 9, 3, 5
VISUAL = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 0, 1, 0, 0, 0], [0] * 9]).bool()


def hidden(seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(3, POSITIONS, DIM, generator=draw) for _ in range(DEPTHS)]


def looped(states: list[Tensor], vector: Tensor, sample: int) -> np.ndarray:
    """[depths, summaries] in loops."""
    found = np.full((DEPTHS, 3), np.nan)
    for depth in range(DEPTHS):
        own = [states[depth][sample, p] for p in range(POSITIONS) if VISUAL[sample, p]]
        cosines = sorted((float(torch.cosine_similarity(vector[depth], v, dim=0)) for v in own), reverse=True)
        if cosines:
            best = cosines[:TOP]
            found[depth] = cosines[0], sum(best) / len(best), sum(cosines) / len(cosines)
    return found


@pytest.mark.parametrize("samples", [[0, 1, 2], [1], [2, 2, 0, 1, 0]])
def test_summaries_equal_loops(samples: list[int]) -> None:
    states, vectors = hidden(), torch.stack(hidden(1), dim=1)[:, :, 0].repeat(2, 1, 1)[: len(samples)]
    found = VisualStates.of(states, VISUAL).compared(vectors, samples).numpy()
    expected = np.stack([looped(states, vector, s) for vector, s in zip(vectors, samples, strict=True)])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.isnan(found[[s == 2 for s in samples]]).all()


def test_no_visual_token_at_all() -> None:
    found = VisualStates.of(hidden(), torch.zeros_like(VISUAL)).compared(torch.ones(3, DEPTHS, DIM), [0, 1, 2])
    assert found.shape == (3, DEPTHS, 3)
    assert found.isnan().all()


def test_a_later_prompt_adds_its_tokens() -> None:
    states, vectors = hidden(), torch.stack(hidden(1), dim=1)[:, :, 0]
    first, second = VISUAL.clone(), VISUAL.clone()
    first[:, 4:], second[:, :4] = False, False
    joined = VisualStates.of(states, first).joined(VisualStates.of(states, second))
    whole = VisualStates.of(states, VISUAL)
    torch.testing.assert_close(
        joined.compared(vectors, [0, 1, 2]), whole.compared(vectors, [0, 1, 2]), equal_nan=True
    )


def test_the_size_of_a_vector_does_not_matter() -> None:
    states, vectors = VisualStates.of(hidden(), VISUAL), torch.stack(hidden(1), dim=1)[:, :, 0]
    torch.testing.assert_close(
        states.compared(vectors, [0, 1, 2]), states.compared(50 * vectors, [0, 1, 2]), equal_nan=True
    )
