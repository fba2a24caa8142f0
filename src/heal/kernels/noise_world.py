"""The noise of one modality on the device: log-normaliser and concentration of the weights of its noise keys.

The scores of n noise keys are normal. Of them only the log-normaliser matters, and the concentration of the weights;
a table holds a few equally likely cases of both for each spread of the scores (heal.analysis.lognormal).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.analysis import expected, lognormal

NODES = tl.constexpr(lognormal.NODES)
SLOTS = tl.constexpr(expected.SLOTS)
SPREADS = tl.constexpr(lognormal.SPREADS)
PER_DOUBLING = tl.constexpr(expected.ENTRIES_PER_DOUBLING)
"""Of s²."""


@triton.jit
@no_type_check
def entry(squared, place):
    """The entry of a table below s², and how far s² is from it. `place` is the entry of s² = 1."""
    where = place + PER_DOUBLING * tl.log2(tl.where(squared > 0, squared, 1.0))
    # NaN has no place in the table: it takes the first one, and the centre of the scores brings it back
    where = tl.where((squared > 0) & (where > 0), where, 0.0)
    where = tl.minimum(where, SPREADS - 1.0)
    index = tl.minimum(where.to(tl.int32), SPREADS - 2)
    return index, where - index.to(tl.float32)


@triton.jit
@no_type_check
def cases(table, index, rest, slot, real, centre, known):
    """Log-normaliser and C/n [HEADS, states] of the slots of one group, from `entry` [HEADS].

    `table` is [SPREADS, 2, SLOTS]. Slot 0 is the real partial with log-normaliser `real` [HEADS], which has no noise.
    """
    place = table + (index * (2 * SLOTS))[:, None] + slot[None, :]
    rest = rest[:, None]
    lse = centre[:, None] + _between(place, rest, known)
    return tl.where((slot == 0)[None, :], real[:, None], lse), _between(place + SLOTS, rest, known)


@triton.jit
@no_type_check
def _between(place, rest, known):
    low = tl.load(place, mask=known[None, :], other=0.0)
    high = tl.load(place + 2 * SLOTS, mask=known[None, :], other=0.0)
    return low + rest * (high - low)
