"""Small device functions that the kernels share.

Every function of this package that runs on the device is marked `no_type_check`: its arguments are blocks of the
compiler and no Python values, and a checker between Triton and the source would hide it.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)
LOWEST = tl.constexpr(-8.507059173023462e37)
"""As in heal.analysis.split."""


@triton.jit
@no_type_check
def at_least(x, low):
    """torch.clamp(min=low): NaN stays NaN, which `tl.maximum` would drop."""
    return tl.where(x < low, low, x)


@triton.jit
@no_type_check
def finite_top(top):
    """What scores are compared with: 0 where there is no score at all."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
@no_type_check
def log_or_empty(normaliser):
    """log, with log 0 = −inf."""
    empty = normaliser == 0
    return tl.where(empty, float("-inf"), tl.log(tl.where(empty, 1.0, normaliser)))


@triton.jit
@no_type_check
def root(x):
    """√x without rounding up to a wrong neighbour: sqrt.approx would be off by one unit."""
    return tl.sqrt_rn(x)


@triton.jit
@no_type_check
def tanh(x):
    """A series for small |x|, where 1 − 2/(e²ˣ + 1) cancels."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.3, series, 1 - 2 / (tl.exp(2 * x) + 1))


@triton.jit
@no_type_check
def capped(scores, softcap, CAPPED: tl.constexpr):
    """cap·tanh(s/cap), as Gemma 2 bounds its scores."""
    if CAPPED:
        scores = tanh(scores / softcap) * softcap
    return scores
