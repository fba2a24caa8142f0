"""o_proj of one row, and how far each head's replacement moves its output, for CPUs, compiled by Numba.

The same as the sums of `projection_and_sums`, its oracle, in one read of the weights in memory order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heal.kernels.cpu_attention import compiled

Array = NDArray[Any]
CALLED_FROM_PYTHON = ("project",)
"""See `heal.kernels.cpu`."""


@compiled
def project(
    weight: Array,
    bias: Array,
    residual: Array,
    outputs: Array,
    moved: Array,
    multiplier: float,
    projected: Array,
    sums: Array,
) -> None:
    """o_proj of the outputs into `projected` [hidden]; ⟨y, s⟩ and ‖s‖² of each head are added to `sums` [2, heads].

    weight [hidden, heads·dim]; bias [hidden or 0]; residual [hidden]; outputs and moved [heads, dim]. The stream is
    y = residual + multiplier · projected. The shift of a head is s = W moved.
    """
    heads, dim = outputs.shape
    shifts = np.empty(heads, np.float32)
    for row in range(weight.shape[0]):
        whole = np.float32(0)
        for head in range(heads):
            own, shift = np.float32(0), np.float32(0)
            for c in range(dim):
                own += weight[row, head * dim + c] * outputs[head, c]
                shift += weight[row, head * dim + c] * moved[head, c]
            whole += own
            shifts[head] = shift
        if bias.shape[0] > 0:
            whole += bias[row]
        projected[row] = whole
        y = np.float64(residual[row]) + multiplier * whole
        for head in range(heads):
            sums[0, head] += y * shifts[head]
            sums[1, head] += np.float64(shifts[head]) * shifts[head]
