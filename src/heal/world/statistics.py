"""Co-occurrence of objects: scene archetypes fitted to real images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from heal import strict_json
from heal.world.categories import NAMES

TABLE = Path(__file__).parent / "data" / "statistics.json"


@dataclass(frozen=True, eq=False)
class Statistics:
    """A mixture of archetypes. Objects are independent within an archetype."""

    weights: np.ndarray
    """[archetypes]"""
    chances: np.ndarray
    """[archetypes, categories]"""

    @property
    def marginal(self) -> np.ndarray:
        """P(object)."""
        return self.weights @ self.chances

    @property
    def joint(self) -> np.ndarray:
        """P(a, b) for a ≠ b; the diagonal is the marginal."""
        joint = np.einsum("k,ki,kj->ij", self.weights, self.chances, self.chances)
        np.fill_diagonal(joint, self.marginal)
        return joint

    def given(self, present: list[int]) -> np.ndarray:
        """P(object | these are present)."""
        likelihood = self.weights * np.prod(self.chances[:, present], axis=1)
        return (likelihood / likelihood.sum()) @ self.chances


@lru_cache(maxsize=1)
def statistics() -> Statistics:
    record = strict_json.read(TABLE)
    weights = np.array([a["weight"] for a in record["archetypes"]])
    chances = np.array([[a["objects"].get(name, 0.0) for name in NAMES] for a in record["archetypes"]])
    return Statistics(weights / weights.sum(), chances)
