"""Tables of the log-sum-exp of n normals, compared with draws."""

import math

import numpy as np
import pytest
import torch

from heal.analysis.lognormal import COUNTS_PER_OCTAVE, NODES, SPREADS, NodeTables, nodes, position
from heal.analysis.split import LOWEST

SAMPLES = 16_384
COUNTS = [1, 3, 33, 77]


def drawn(n: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """L − log n and C of independent draws, sorted by L and averaged in K equally large parts."""
    normals = torch.randn(SAMPLES, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    scores = spread * normals
    total = scores.logsumexp(-1)
    concentration = ((2 * scores).logsumexp(-1) - 2 * total).exp()
    total, order = total.sort()
    parts = (total - math.log(n), concentration[order])
    first, second = (part.view(NODES, -1).mean(-1).numpy() for part in parts)
    return first, second


def entry(n: int, spread: float) -> np.ndarray:
    """L − log n and C of the table, interpolated as the fast path does."""
    table = nodes(n).numpy()
    return np.array(
        [[np.interp(position(spread), np.arange(SPREADS), table[:, i, k]) for k in range(NODES)] for i in (0, 1)]
    )


@pytest.mark.parametrize("spread", [0.05, 1.0, 2.3, 40.0])
@pytest.mark.parametrize("n", COUNTS)
def test_nodes_are_means_of_draws(n: int, spread: float) -> None:
    """Within 10 % of the standard deviation of L, and 0.05 of C."""
    (total, concentration), (own, c) = drawn(n, spread), entry(n, spread)
    width = float(np.std(total)) + 1e-3
    assert np.abs(total - own).max() < 0.1 * width + 0.002
    assert abs(float(np.mean(total - own))) < 0.035 * width + 0.002
    assert np.abs(concentration - c).max() < 0.05


def test_without_spread_all_weights_are_equal() -> None:
    for n in (1, 5, 100, 4096):
        own, c = entry(n, 2.0**-6)
        np.testing.assert_allclose(own, 0, atol=0.05)
        np.testing.assert_allclose(c, 1 / n, rtol=0.01)


def test_nodes_ascend_with_the_spread_and_within_a_table() -> None:
    table = nodes(50)
    assert (table[:, 0].diff(dim=1) > 0).all()
    assert (table[:, 0].mean(-1).diff() > -1e-3).all()
    assert ((table[:, 1] > 0) & (table[:, 1] <= 1 + 1e-9)).all()


@pytest.mark.parametrize("n", [70, 90, 130, 190, 1000])
def test_counts_between_the_computed_ones_are_interpolated(n: int) -> None:
    assert n % (2 ** (n.bit_length() - 1) // COUNTS_PER_OCTAVE)
    for spread in (1.0, 8.0):
        total, _ = drawn(n, spread)
        own, _ = entry(n, spread)
        assert np.abs(total - own).max() < 0.08 * float(np.std(total)) + 0.01


def test_tables_of_a_batch() -> None:
    tables = NodeTables(torch.device("cpu"))
    found = tables.of((5, 0, 5, 64))
    assert found.shape == (4, SPREADS, 2, 1 + NODES)
    assert torch.equal(found[0], found[2])
    assert not found[:, :, :, 0].any()  # left for the real partial
    assert (found[1, :, 0, 1:] == LOWEST).all()
    assert not found[1, :, 1].any()
    torch.testing.assert_close(found[3, :, 0, 1:], nodes(64)[:, 0] + math.log(64))
    torch.testing.assert_close(found[3, :, 1, 1:], nodes(64)[:, 1] / 64)
    assert torch.equal(tables.of((64,))[0], found[3])


def test_equal_in_every_process() -> None:
    """Nothing is drawn from the global generator, and a table is a constant."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    nodes(45)
    assert torch.equal(torch.get_rng_state(), before)
