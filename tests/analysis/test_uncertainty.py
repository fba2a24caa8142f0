"""Entropy, margin and likeliest tokens of next-token distributions."""

import math

import numpy as np
import pytest
import torch

from heal.analysis.alternatives import ALTERNATIVES, NONE, others
from heal.analysis.uncertainty import FACTS, LIKELY, distribution_facts


def test_known_distributions() -> None:
    given = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25] * 4, [1.0, 0.0, 0.0, 0.0]]).log()
    found = distribution_facts(given)
    assert found[:, 0].tolist() == pytest.approx([1.5 * math.log(2), math.log(4), 0.0], abs=1e-6)
    assert found[:, 1].tolist() == pytest.approx([0.25, 0.0, 1.0], abs=1e-6)


def test_a_single_token() -> None:
    found = distribution_facts(torch.zeros(2, 1))
    assert found.shape == (2, FACTS)
    assert found[:, :3].tolist() == [[0.0, 1.0, 0.0]] * 2
    assert set(found[0, 3 : 2 + LIKELY].tolist()) == {NONE}
    assert found[0, 2 + LIKELY] == 0
    assert bool(found[0, 3 + LIKELY :].isnan().all())


def test_the_likeliest_tokens_and_their_log_probabilities() -> None:
    logprobs = torch.randn(3, 200_000, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    found = distribution_facts(logprobs)
    ids = found[:, 2 : 2 + LIKELY].long()
    assert torch.equal(ids, logprobs.argsort(dim=-1, descending=True)[:, :LIKELY])
    assert torch.equal(found[:, 2 + LIKELY :], logprobs.gather(1, ids))


def test_the_chosen_token_is_no_alternative() -> None:
    likely = np.array([[7, 3, 9, 1, 4, 2]] * 3)
    logprobs = np.arange(0, -6, -1).astype(np.float32)[None].repeat(3, 0)
    ids, values = others(likely, logprobs, np.array([7, 9, 100]))
    assert ids.tolist() == [[3, 9, 1, 4, 2], [7, 3, 1, 4, 2], [7, 3, 9, 1, 4]]
    assert values.tolist() == [[-1, -2, -3, -4, -5], [0, -1, -3, -4, -5], [0, -1, -2, -3, -4]]
    assert ids.shape[1] == ALTERNATIVES
