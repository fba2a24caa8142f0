"""Links from scores to probabilities: bounds, monotony, and their files."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heal.detect.calibration import Isotonic, Link, Platt, link_from

LINKS: tuple[Link, ...] = (Platt(1.3, -0.2), Platt(0.0, 1.0), Isotonic((-1.0, 0.5, 2.0), (0.0, 0.3, 1.0)))


@pytest.mark.parametrize("link", LINKS)
@given(scores=st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_probabilities_are_bounded_and_do_not_fall(link: Link, scores: list[float]) -> None:
    found = link.probability(np.sort(np.array(scores)))
    assert ((found > 0) & (found < 1)).all()
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("link", LINKS)
def test_round_trip(link: Link) -> None:
    assert link_from(json.loads(json.dumps(link.record()))) == link


def test_known_values() -> None:
    assert Platt(2.0, 1.0).probability(np.array([-0.5, 0.0])).tolist() == pytest.approx([0.5, 1 / (1 + np.exp(-1))])
    assert LINKS[2].probability(np.array([-0.25, 9.0])).tolist() == pytest.approx([0.15, 1 - 1e-4])


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"kind": "platt", "slope": -1, "shift": 0}, "must not be negative"),
        ({"kind": "platt", "slope": float("nan"), "shift": 0}, "must not be negative"),
        ({"kind": "isotonic", "scores": [0, 1], "values": [0.5, 0.2]}, "do not rise"),
        ({"kind": "isotonic", "scores": [1, 1], "values": [0.2, 0.5]}, "do not rise"),
        ({"kind": "isotonic", "scores": [0, 1], "values": [0.2, 1.5]}, "do not rise"),
        ({"kind": "isotonic", "scores": [], "values": []}, "do not rise"),
        ({"kind": "beta"}, "unknown calibration 'beta'"),
    ],
)
def test_other_curves_are_refused(record: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        link_from(record)
