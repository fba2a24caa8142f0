"""Entropy and margin of next-token distributions."""

import math

import pytest
import torch

from heal.analysis.uncertainty import entropy_and_margin


def test_known_distributions() -> None:
    given = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25] * 4, [1.0, 0.0, 0.0, 0.0]]).log()
    found = entropy_and_margin(given)
    assert found[:, 0].tolist() == pytest.approx([1.5 * math.log(2), math.log(4), 0.0], abs=1e-6)
    assert found[:, 1].tolist() == pytest.approx([0.25, 0.0, 1.0], abs=1e-6)


def test_a_single_token() -> None:
    assert entropy_and_margin(torch.zeros(2, 1)).tolist() == [[0.0, 1.0]] * 2
