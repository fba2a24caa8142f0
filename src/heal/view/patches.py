"""Where heads look in the image, as data of the view."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from heal.trace import Trace

MOST_BYTES = 1_500_000
"""Of the weights of all answers of a page."""


def patch_data(trace: Trace | None, budget: int) -> dict[str, Any] | None:
    """The attention of every head on the patches, at as many steps as the budget allows.

    None if it was not recorded, if the patches are no grid, or if a single step is too large.
    """
    patches = None if trace is None else trace.patches
    if trace is None or patches is None or patches.grid is None or not trace.steps:
        return None
    steps = _steps(trace, budget // max(1, patches.levels[0].size))
    if not steps:
        return None
    return {
        "grid": list(patches.grid),
        "box": list(patches.box),
        "steps": steps,
        "levels": base64.b64encode(patches.levels[steps].tobytes()).decode(),
        "unit": base64.b64encode(patches.unit[steps].astype("<f4").tobytes()).decode(),
    }


def _steps(trace: Trace, count: int) -> Sequence[int]:
    """All steps, or as many as fit of those at which head types were refreshed."""
    if trace.steps <= count:
        return list(range(trace.steps))
    refreshed = np.flatnonzero(trace.refreshed).tolist() or list(range(trace.steps))
    return refreshed[:: -(-len(refreshed) // count)] if count else []
