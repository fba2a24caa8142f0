"""Attention of the newest query split by position group, and running moments, for CPUs, compiled by Numba.

The same as `split_stacked` and `Moments.append`, which are its oracles.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heal.extras import optional

with optional():
    from numba import njit

Array = NDArray[Any]
CALLED_FROM_PYTHON = ("append", "split_rows")
"""See `heal.kernels.cpu`."""
# sums may be reordered, but NaN and infinity must survive
FAST = {"reassoc", "contract", "arcp", "nsz"}
F = np.float32
INVERSE, FIRST, SECOND = F(1.44269504), F(0.693359375), F(-2.12194440e-4)
"""1/ln 2, and ln 2 in two parts."""
TERMS = tuple(map(F, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)))
T0, T1, T2, T3, T4, T5 = TERMS


def compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call and keep the result on disk."""
    # type checkers that tests wrap around functions cannot be compiled
    return njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")(inspect.unwrap(function))


@compiled
def exponential(x: Any) -> Any:
    """e^x in fp32 for x ≤ 0 (0 below e^-87), without branches, so that a loop of it is vectorised. NaN stays NaN."""
    x = F(-88) if x < F(-88) else F(x)
    n = F(np.floor(x * INVERSE + F(0.5)))
    r = F(x - n * FIRST - n * SECOND)
    p = F(F(F(F(F(F(T0 * r + T1) * r + T2) * r + T3) * r + T4) * r + T5) * r * r + r + F(1))
    return F(p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32))


@compiled
def append(mean: Array, squared: Array, count: Array, key: Array, value: Array, codes: Array) -> None:
    """Add the last position to the moments of its group (of no group if its code is not 0 or 1), in place.

    mean and squared [rows, groups, kv_heads, 2, dim]; count [rows, groups]; key and value
    [rows, kv_heads, positions, dim]; codes [rows, positions].
    """
    rows, kv_heads, positions, dim = key.shape
    at = positions - 1
    for row in range(rows):
        code = codes[row, at]
        if code > 1:
            continue
        count[row, code] += 1
        share = F(1) / count[row, code]
        for head in range(kv_heads):
            for which in range(2):
                states = key[row, head, at] if which == 0 else value[row, head, at]
                for c in range(dim):
                    delta = states[c] - mean[row, code, head, which, c]
                    mean[row, code, head, which, c] += delta * share
                    squared[row, code, head, which, c] += delta * delta * (1 - share)


@compiled
def split_rows(query: Array, key: Array, value: Array, codes: Array, scale: float, values: Array, lse: Array) -> None:
    """Softmax attention over each position group: means into `values`, log-normalisers into `lse`.

    query [rows, heads, dim]; key and value [rows, kv_heads, positions, dim]; codes [rows, positions], the group of
    each position (255: none); values [rows, heads, groups, dim]; lse [rows, heads, groups].
    """
    rows, heads, dim = query.shape
    kv_heads, positions = key.shape[1], key.shape[2]
    share, groups = heads // kv_heads, lse.shape[2]
    scores = np.empty((share, positions), F)
    total = np.empty(dim, F)
    starts = np.empty(positions + 1, np.int64)
    for row in range(rows):
        runs = _runs(codes, row, starts)
        for kv in range(kv_heads):
            # heads that share keys read each of them together
            for at in range(positions):
                for own in range(share):
                    dot = F(0)
                    for c in range(dim):
                        dot += query[row, kv * share + own, c] * key[row, kv, at, c]
                    scores[own, at] = dot * scale
            for own in range(share):
                head = kv * share + own
                for group in range(groups):
                    place = (row, kv, own, group, runs)
                    lse[row, head, group] = _group(scores, value, codes, starts, place, total)
                    for c in range(dim):
                        values[row, head, group, c] = total[c]


@compiled
def _runs(codes: Array, row: int, starts: Array) -> int:
    """The number of runs of equal codes. Their starts, and the end of the last one, are written into `starts`."""
    runs = 0
    for at in range(codes.shape[1]):
        if at == 0 or codes[row, at] != codes[row, at - 1]:
            starts[runs] = at
            runs += 1
    starts[runs] = codes.shape[1]
    return runs


@compiled
def _group(
    scores: Array, value: Array, codes: Array, starts: Array, place: tuple[int, int, int, int, int], out: Array
) -> Any:
    """The weighted mean of the values of a group into `out`. Returns its log-normaliser. Overwrites its scores.

    `place`: row, key/value head, row of `scores`, group, number of runs. Views of arrays would cost more than the
    work on a short one.
    """
    row, kv, own, group, runs = place
    dim = value.shape[3]
    top, total = F(-np.inf), F(0)
    for c in range(dim):
        out[c] = 0
    for run in range(runs):
        if codes[row, starts[run]] == group:
            top = max(top, _largest(scores, own, starts[run], starts[run + 1]))
    for run in range(runs):
        if codes[row, starts[run]] != group:
            continue
        at, end = starts[run], starts[run + 1]
        for j in range(at, end):
            scores[own, j] = exponential(scores[own, j] - top)
            total += scores[own, j]
        while at + 3 < end:  # four at a time, because each sum is read and written once
            a, b, c, d = scores[own, at], scores[own, at + 1], scores[own, at + 2], scores[own, at + 3]
            for i in range(dim):
                out[i] += (
                    a * value[row, kv, at, i]
                    + b * value[row, kv, at + 1, i]
                    + c * value[row, kv, at + 2, i]
                    + d * value[row, kv, at + 3, i]
                )
            at += 4
        while at < end:
            for i in range(dim):
                out[i] += scores[own, at] * value[row, kv, at, i]
            at += 1
    if total == 0:
        return F(-np.inf)
    for i in range(dim):
        out[i] /= total
    return F(math.log(total) + top)


@compiled
def _largest(scores: Array, own: int, at: int, end: int) -> Any:
    """The largest score, without NaN, which the exponentials pass on. Four at a time do not wait for each other."""
    a = b = c = d = F(-np.inf)
    while at + 3 < end:
        a = scores[own, at] if scores[own, at] > a else a
        b = scores[own, at + 1] if scores[own, at + 1] > b else b
        c = scores[own, at + 2] if scores[own, at + 2] > c else c
        d = scores[own, at + 3] if scores[own, at + 3] > d else d
        at += 4
    while at < end:
        a = scores[own, at] if scores[own, at] > a else a
        at += 1
    return max(max(a, b), max(c, d))
