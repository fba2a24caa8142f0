"""The likeliest tokens that were not chosen."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int64

ALTERNATIVES = 5
"""Number of other tokens that are recorded at each step."""
NONE = -1
"""In the place of a token id, if the vocabulary has no more."""


def others(
    likely: Int64[np.ndarray, "step n"], logprobs: Float32[np.ndarray, "step n"], chosen: Int64[np.ndarray, " step"]
) -> tuple[np.ndarray, np.ndarray]:
    """Without the chosen token: [step, ALTERNATIVES] ids and log-probabilities, the likeliest first.

    `likely` are the ALTERNATIVES + 1 likeliest tokens, so that enough of them remain.
    """
    order = np.argsort(likely == chosen[:, None], axis=1, kind="stable")[:, :ALTERNATIVES]
    return np.take_along_axis(likely, order, 1), np.take_along_axis(logprobs, order, 1)
