"""From the score of a linear model to a probability: a logistic link, or a monotone curve through points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

LEAST = 1e-4
"""No probability is closer to 0 or 1: that many words were never seen."""


@runtime_checkable
class Link(Protocol):
    """A non-decreasing function from scores to probabilities."""

    @property
    def slope(self) -> float:
        """The factor from a score to log-odds."""

    def probability(self, scores: np.ndarray) -> np.ndarray: ...

    def record(self) -> dict[str, Any]:
        """As JSON, for `link_from`."""


@dataclass(frozen=True)
class Platt:
    """Probability with the log-odds slope · score + shift."""

    slope: float
    shift: float

    def probability(self, scores: np.ndarray) -> np.ndarray:
        odds = np.clip(self.slope * scores + self.shift, -50, 50)
        return np.clip(1 / (1 + np.exp(-odds)), LEAST, 1 - LEAST)

    def record(self) -> dict[str, Any]:
        return {"kind": "platt", "slope": self.slope, "shift": self.shift}


@dataclass(frozen=True)
class Isotonic:
    """Linear interpolation between points, as isotonic regression gives them."""

    scores: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def slope(self) -> float:
        return 1.0

    def probability(self, scores: np.ndarray) -> np.ndarray:
        return np.clip(np.interp(scores, self.scores, self.values), LEAST, 1 - LEAST)

    def record(self) -> dict[str, Any]:
        return {"kind": "isotonic", "scores": list(self.scores), "values": list(self.values)}


def link_from(record: Mapping[str, Any]) -> Link:
    """The stored link. It must not decrease: a higher score is a higher risk."""
    kind = record["kind"]
    if kind == "platt":
        slope, shift = float(record["slope"]), float(record["shift"])
        if not (0 <= slope < np.inf and abs(shift) < np.inf):
            raise ValueError(f"the slope of the calibration must not be negative, but is {slope}")
        return Platt(slope, shift)
    if kind == "isotonic":
        scores, values = (tuple(float(x) for x in record[name]) for name in ("scores", "values"))
        rising = (np.diff(scores) > 0).all() and (np.diff(values) >= 0).all()
        if len(scores) != len(values) or not scores or not rising or not 0 <= values[0] <= values[-1] <= 1:
            raise ValueError("the points of the calibration do not rise from 0 to 1")
        return Isotonic(scores, values)
    raise ValueError(f"unknown calibration {kind!r}")
