"""The information atoms, compared with definitions, a search of the polytope and known gates."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heal.analysis import pid

Measure = Callable[[np.ndarray], float]

SEEDS = st.integers(0, 2**31 - 1)
law = settings(deadline=None, max_examples=50)


def gate(outputs: dict[tuple[int, int], int]) -> np.ndarray:
    """The joint distribution of equally likely inputs (image, text) and their output."""
    joint = np.zeros((2, 2, 1 + max(outputs.values())))
    for (image, text), y in outputs.items():
        joint[image, text, y] = 1 / len(outputs)
    return joint


BITS = list(product((0, 1), (0, 1)))
GATES = {
    "xor": gate({(v, t): v ^ t for v, t in BITS}),
    "and": gate({(v, t): v & t for v, t in BITS}),
    "copy": gate({(0, 0): 0, (1, 1): 1}),
    "unique": gate({(v, t): 2 * v + t for v, t in BITS}),
}
AND_ONE = 0.75 * math.log2(4 / 3) + 0.25 * 2 - 0.5
"""I(V; Y) of the AND gate: H(Y) = h(1/4) and H(Y|V) = 1/2."""
AND_CCS = 0.25 * math.log2(4 / 3)


@law
@given(*[st.floats(-2, 2)] * 4)
def test_atoms_add_up(i_vis: float, i_lang: float, i_total: float, redundancy: float) -> None:
    atoms = pid.pid_atoms(i_vis, i_lang, i_total, redundancy)
    assert atoms.total == pytest.approx(i_total, abs=1e-12)
    assert atoms.unique_visual + atoms.redundancy == pytest.approx(i_vis, abs=1e-12)
    assert atoms.unique_language + atoms.redundancy == pytest.approx(i_lang, abs=1e-12)
    assert atoms.synergy == pytest.approx(i_total - i_vis - i_lang + redundancy, abs=1e-12)


def test_atoms_of_tensors() -> None:
    i_vis, i_lang, i_total = torch.rand(3, 4, 5)
    atoms = pid.pid_atoms(i_vis, i_lang, i_total, 0.1)
    torch.testing.assert_close(atoms.total, i_total)


@pytest.mark.parametrize(
    ("name", "measure", "expected"),
    [
        ("xor", pid.i_min, (0, 0, 0, 1)),
        ("xor", pid.broja, (0, 0, 0, 1)),
        ("xor", pid.ccs, (0, 0, 0, 1)),
        ("and", pid.i_min, (0, 0, AND_ONE, 0.5)),
        ("and", pid.broja, (0, 0, AND_ONE, 0.5)),
        ("and", pid.ccs, (AND_ONE - AND_CCS, AND_ONE - AND_CCS, AND_CCS, 0.5 - AND_ONE + AND_CCS)),
        ("copy", pid.i_min, (0, 0, 1, 0)),
        ("copy", pid.broja, (0, 0, 1, 0)),
        ("copy", pid.ccs, (0, 0, 1, 0)),
        # Known flaw of I_min: equal amounts of information count as the same information.
        ("unique", pid.i_min, (0, 0, 1, 1)),
        ("unique", pid.broja, (1, 1, 0, 0)),
        ("unique", pid.ccs, (1, 1, 0, 0)),
    ],
)
def test_gates(name: str, measure: Measure, expected: tuple[float, ...]) -> None:
    atoms = pid.decompose(GATES[name], measure)
    found = (atoms.unique_visual, atoms.unique_language, atoms.redundancy, atoms.synergy)
    assert found == pytest.approx(expected, abs=1e-4)


def entropy(p: np.ndarray) -> np.ndarray:
    return -np.sum(p * np.log2(p, out=np.zeros_like(p), where=p > 0), axis=-1)


def joints(shape: tuple[int, int, int]) -> st.SearchStrategy[np.ndarray]:
    """Dense, sparse and nearly degenerate distributions."""
    spread = st.floats(-2, 1).map(lambda decades: 10**decades)
    return st.builds(
        lambda seed, s: np.random.default_rng(seed).dirichlet(np.full(math.prod(shape), s)).reshape(shape),
        SEEDS,
        spread,
    )


@settings(law, max_examples=25)
@given(joints((3, 2, 4)))
def test_broja_atoms_are_never_negative(joint: np.ndarray) -> None:
    atoms = pid.decompose(joint, pid.broja)
    parts = (atoms.unique_visual, atoms.unique_language, atoms.redundancy, atoms.synergy)
    assert min(parts) > -1e-5


@settings(law, max_examples=25)
@given(joints((2, 2, 2)))
def test_broja_is_at_least_as_good_as_a_search_of_the_polytope(joint: np.ndarray) -> None:
    visual, language = joint.sum(1), joint.sum(0)
    lowest = np.maximum(0, visual[0] + language[0] - visual.sum(0))
    highest = np.minimum(visual[0], language[0])
    axes = [np.linspace(low, high, 61) for low, high in zip(lowest, highest, strict=True)]
    corner = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 1, 2)
    cells = np.concatenate(
        [corner, visual[0] - corner, language[0] - corner, visual[1] - language[0] + corner], axis=1
    ).clip(0)
    best = (entropy(cells.sum(2)) + entropy(cells.sum(1)) - entropy(cells.reshape(-1, 8))).min()
    single = pid.mutual_information(visual) + pid.mutual_information(language)
    assert pid.broja(joint) >= single - best - 1e-5
    assert pid.broja(joint) <= single - best + 5e-3


@pytest.mark.parametrize("measure", [pid.i_min, pid.broja, pid.ccs])
def test_redundancy_is_symmetric_and_scale_invariant(measure: Measure) -> None:
    joint = np.random.default_rng(2).dirichlet(np.ones(27)).reshape(3, 3, 3)
    assert measure(joint.swapaxes(0, 1)) == pytest.approx(measure(joint), abs=1e-5)
    assert measure(1000 * joint) == pytest.approx(measure(joint), abs=1e-6)


@pytest.mark.parametrize("joint", [np.zeros((2, 2, 2)), -np.ones((2, 2, 2)), np.full((2, 2, 2), np.nan)])
def test_invalid_distributions_are_rejected(joint: np.ndarray) -> None:
    with pytest.raises(ValueError, match="joint distribution"):
        pid.i_min(joint)


def test_quantile_bins_hold_equal_shares() -> None:
    rng = np.random.default_rng(0)
    joint = pid.discretise(rng.normal(size=400), rng.exponential(size=400), rng.random(400), bins=4)
    assert joint.shape == (4, 4, 4)
    for axes in [(1, 2), (0, 2), (0, 1)]:
        assert joint.sum(axes) == pytest.approx([0.25] * 4)


def test_rare_categories_keep_their_bin() -> None:
    label = np.repeat([0.0, 1.0, 2.0], [97, 2, 1])
    joint = pid.discretise(label, label, label, bins=4)
    assert [joint[i, i, i] for i in range(4)] == pytest.approx([0.97, 0.02, 0.01, 0.0])


def test_samples_of_a_gate_give_its_atoms() -> None:
    v, t = np.random.default_rng(0).integers(0, 2, (2, 4000))
    atoms = pid.decompose(pid.discretise(v, t, v ^ t, bins=2))
    assert atoms.synergy == pytest.approx(1, abs=1e-2)
    assert atoms.redundancy == pytest.approx(0, abs=1e-2)


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        (([1.0], [1.0, 2.0], [1.0]), "of equal length"),
        (([], [], []), "non-empty"),
        (([np.nan], [1.0], [1.0]), "NaN"),
    ],
)
def test_invalid_samples_are_rejected(samples: tuple[list[float], list[float], list[float]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        pid.discretise(*samples)
