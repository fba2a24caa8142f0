"""The noise of one modality on the device: log-normaliser and concentration of the weights of its noise keys.

The scores of n noise keys are normal with the same centre and spread. Their log-normaliser is centre + L(n, spread),
and Σw²/(Σw)² of their weights is C(n, spread). Both come from a table, for up to four nodes: equally likely noise
worlds, whose similarities are averaged.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.kernels.numeric import at_least


@triton.jit
@no_type_check
def noise_world(
    centre, spread, count, node, known, table, per_octave, per_unit, COUNTS: tl.constexpr, SPREADS: tl.constexpr
):  # fmt: skip
    """Log-normaliser and concentration [HEADS, states] for centre and spread [HEADS] and the node of each state.

    Without positions −inf and 0. `known` is False for states that only fill the block.

    `table` is [nodes, 2, COUNTS, SPREADS]: bilinear in log₂ n and in the spread, and straight on beyond its end.
    """
    x = at_least(tl.minimum(tl.log2(at_least(count, 1.0)) * per_octave, COUNTS - 1.0), 0.0)
    y = spread * per_unit
    # NaN has no place in the table: it takes the first one, and the weights bring it back
    i = tl.minimum(x.to(tl.int32), COUNTS - 2)
    j = tl.where(y == y, tl.minimum(y, SPREADS - 2.0), 0.0).to(tl.int32)
    across, along = x - i.to(tl.float32), y - j.to(tl.float32)
    place = table + (node * (2 * COUNTS * SPREADS))[None, :] + (i * SPREADS + j)[:, None]
    log_sum = _between(place, across, along[:, None], known[None, :], SPREADS)
    concentration = _between(place + COUNTS * SPREADS, across, along[:, None], known[None, :], SPREADS)
    lse = tl.where(count > 0, centre[:, None] + log_sum, float("-inf"))
    return lse, tl.where(count > 0, at_least(concentration, 0.0), 0.0)


@triton.jit
@no_type_check
def _between(place, across, along, known, SPREADS: tl.constexpr):
    low0 = tl.load(place, mask=known, other=0.0)
    low1 = tl.load(place + 1, mask=known, other=0.0)
    high0 = tl.load(place + SPREADS, mask=known, other=0.0)
    high1 = tl.load(place + SPREADS + 1, mask=known, other=0.0)
    low, high = low0 + along * (low1 - low0), high0 + along * (high1 - high0)
    return low + across * (high - low)
