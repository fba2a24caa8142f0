"""Contrasts of next-token scores."""

import math

import pytest
import torch
from torch.testing import assert_close

from heal.engine.comparison import moved
from heal.methods.contrast import contrast, plausible

LOGITS = torch.tensor([[3.0, 1.0, 2.9, -4.0], [0.0, 0.0, 0.0, -1.0]])
OTHER = torch.tensor([[1.0, 1.0, 5.0, 0.0], [1.0, -1.0, 0.0, 0.0]])
INF = math.inf


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 3.0])
def test_contrast_by_hand(strength: float) -> None:
    out = contrast(LOGITS, OTHER, strength)
    for row in range(2):
        for token in range(4):
            own, other = float(LOGITS[row, token]), float(OTHER[row, token])
            assert float(out[row, token]) == pytest.approx(own + strength * (own - other))


def test_contrast_with_itself_changes_nothing() -> None:
    assert_close(contrast(LOGITS, LOGITS, 1.0), LOGITS)


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (0.0, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        (1e-6, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        (0.1, [[1, 1, 1, 0], [1, 1, 1, 1]]),
        (0.2, [[1, 0, 1, 0], [1, 1, 1, 1]]),
        (0.5, [[1, 0, 1, 0], [1, 1, 1, 0]]),
        (1.0, [[1, 0, 0, 0], [1, 1, 1, 0]]),
    ],
)
def test_plausible_keeps_tokens_by_their_share_of_the_highest(share: float, kept: list[list[int]]) -> None:
    """The model's logits decide, independent of the scores."""
    out = plausible(OTHER, LOGITS, share)
    assert_close(out, torch.where(torch.tensor(kept).bool(), OTHER, -INF))
    assert out.isfinite().any(-1).all()


def test_moved_is_the_total_variation() -> None:
    one, other = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.25, 0.25, 0.5]]).log()
    assert_close(moved(one, other), torch.tensor([0.25]))
    assert_close(moved(one + 7, one), torch.zeros(1))
    assert_close(moved(torch.tensor([[0.0, -INF]]), torch.tensor([[-INF, 0.0]])), torch.ones(1))
