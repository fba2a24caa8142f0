"""What follows the attention of one decoding step of one layer, for CPUs, compiled by Numba.

It computes expected scores, factors, the plain and the calibrated output: the same as `expected_scores`,
`joint_factors` and `Split.scaled`, which are its oracles. The arrays of a step are small, so that elsewhere the
number of operations decides the cost. Loops have a fixed length where possible, so that they become vector
instructions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heal.kernels.cpu_attention import compiled

Array = NDArray[Any]
COSINE, L2, BOTH = 0, 1, 2
VISUAL, LANGUAGE = 0, 1
TINY = 1e-38
CALLED_FROM_PYTHON = ("finish",)
"""The functions that others call; the rest is compiled into them. Torch does not see these calls, so that
`heal.launch_counter` watches them by name."""
NODES = 8
"""Cases of each group, as in the tables."""
LOW, HIGH, SHARE, SHIFT, PART, PLACE = range(6)
"""Columns of `counts`: the two computed tables around a number of positions, the share of the second one, what is
added to L, the factor of C, and the entry of s² = 1."""


@compiled
def exponential(x: float) -> float:
    """e^x for x ≤ 0 down to e^-690, without branches, so that a loop of it is vectorised. NaN stays NaN."""
    x = -690.0 if x < -690.0 else x
    n = np.floor(x * 1.4426950408889634 + 0.5)
    r = x - n * 0.693145751953125 - n * 1.42860682030941723212e-6
    # Taylor series: |r| ≤ 0.35, so that the next term is below 1e-17
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r * r + r + 1.0
    return p * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@compiled
def _cases(
    m: int, sums: Array, scale: float, bank: Array, count: Array, per_doubling: float, weights: Array, squares: Array
) -> None:
    """The log-normalisers of the K cases of group m, and what the noise adds to the square of their value.

    sums: see `_products`; bank [tables, spreads, 2·slots]; count: see LOW.
    """
    last = bank.shape[1] - 1
    where = count[m, PLACE] + per_doubling * math.log2(sums[m, 1]) if sums[m, 1] > 0 else 0.0
    if not where > 0:  # NaN as well: it stays in the centre
        where = 0.0
    if where > last - 0.001:
        where = last - 0.001
    index = int(where)
    rest, share = where - index, count[m, SHARE]
    low, high = int(count[m, LOW]), int(count[m, HIGH])
    centre, factor = count[m, SHIFT] + sums[m, 0] * scale, count[m, PART] * sums[m, 2]
    for k in range(NODES):
        c = 1 + k
        here = bank[low, index, c] + share * (bank[high, index, c] - bank[low, index, c])
        there = bank[low, index + 1, c] + share * (bank[high, index + 1, c] - bank[low, index + 1, c])
        weights[m, k] = here + rest * (there - here) + centre
    for k in range(NODES):
        c = 2 + NODES + k
        here = bank[low, index, c] + share * (bank[high, index, c] - bank[low, index, c])
        there = bank[low, index + 1, c] + share * (bank[high, index + 1, c] - bank[low, index + 1, c])
        squares[m, k] = (here + rest * (there - here)) * factor


@compiled
def _products(
    query: Array, values: Array, mean: Array, squared: Array, place: tuple[int, int, int], gram: Array, sums: Array
) -> None:
    """Inner products of v, l, μ_v, μ_l and r into `gram` (see `_information`), in one pass over the channels.

    Into `sums` [2 groups, 3]: q·μ of the keys, q²·Σ(k − μ)², and Σ(v − μ)². `place`: row, head, key/value head.
    """
    row, head, kv = place
    vv = ww = vw = mm = nn = mn = vm = vn = wm = wn = 0.0
    centre_v = centre_l = spread_v = spread_l = own_v = own_l = 0.0
    for c in range(query.shape[2]):
        q = np.float64(query[row, head, c])
        v, w = np.float64(values[row, head, VISUAL, c]), np.float64(values[row, head, LANGUAGE, c])
        m, n = np.float64(mean[row, VISUAL, kv, 1, c]), np.float64(mean[row, LANGUAGE, kv, 1, c])
        vv += v * v
        ww += w * w
        vw += v * w
        mm += m * m
        nn += n * n
        mn += m * n
        vm += v * m
        vn += v * n
        wm += w * m
        wn += w * n
        centre_v += q * mean[row, VISUAL, kv, 0, c]
        centre_l += q * mean[row, LANGUAGE, kv, 0, c]
        spread_v += q * q * squared[row, VISUAL, kv, 0, c]
        spread_l += q * q * squared[row, LANGUAGE, kv, 0, c]
        own_v += squared[row, VISUAL, kv, 1, c]
        own_l += squared[row, LANGUAGE, kv, 1, c]
    gram[1, 1], gram[2, 2], gram[3, 3], gram[4, 4] = vv, ww, mm, nn
    gram[1, 2] = gram[2, 1] = vw
    gram[1, 3] = gram[3, 1] = vm
    gram[1, 4] = gram[4, 1] = vn
    gram[2, 3] = gram[3, 2] = wm
    gram[2, 4] = gram[4, 2] = wn
    gram[3, 4] = gram[4, 3] = mn
    sums[VISUAL, 0], sums[VISUAL, 1], sums[VISUAL, 2] = centre_v, spread_v, own_v
    sums[LANGUAGE, 0], sums[LANGUAGE, 1], sums[LANGUAGE, 2] = centre_l, spread_l, own_l
    if values.shape[2] > 2:
        for a in range(1, 6):
            dot = 0.0
            for c in range(query.shape[2]):
                if a < 3:
                    state = values[row, head, a - 1, c]
                elif a < 5:
                    state = mean[row, a - 3, kv, 1, c]
                else:
                    state = values[row, head, 2, c]
                dot += np.float64(state) * values[row, head, 2, c]
            gram[a, 5] = gram[5, a] = dot


@compiled
def _add_output(gram: Array, part: Array) -> None:
    """The inner products of h = Σ part·partial, from those of the partials."""
    for a in range(1, 6):
        dot = part[VISUAL] * gram[1, a] + part[LANGUAGE] * gram[2, a]
        if part.shape[0] > 2:
            dot += part[2] * gram[5, a]
        gram[0, a] = gram[a, 0] = dot
    gram[0, 0] = part[VISUAL] * gram[0, 1] + part[LANGUAGE] * gram[0, 2]
    if part.shape[0] > 2:
        gram[0, 0] += part[2] * gram[0, 5]


@compiled
def _cosine(u: float, w: float, own: float, other: float, hh: float, hx: float, hy: float, xy: float) -> float:
    """cos(h, H), H = s·x + (1 − s)·y with s = u/(u + w); `own` and `other` are ‖x‖² and ‖y‖² with noise."""
    s = u / (u + w)
    r = 1 - s
    squared = s * s * own + r * (2 * s * xy + r * other)
    return (s * hx + r * hy) / math.sqrt(max(squared * hh, TINY))


@compiled
def _all_cosines(weights: Array, squares: Array, hh: float, hx: float, hy: float, xy: float) -> float:
    """The sum over all pairs of cases. As one function, because its loops become vectors only together."""
    total = 0.0
    for j in range(NODES):
        u, own = weights[0, j], squares[0, j]
        for k in range(NODES):
            total += _cosine(u, weights[1, k], own, squares[1, k], hh, hx, hy, xy)
    return total


@compiled
def _states(
    gram: Array,
    x: int,
    y: int,
    upper: float,
    own: float,
    neutral: float,
    weights: Array,
    squares: Array,
    m: int,
    measure: int,
) -> float:
    """The mean over the cases of group m of Sim(h, H), H = s·x + r·y + n·(the neutral partial).

    `upper`, `weights[m]` and `neutral` are their normalisers; `own` and `squares[m]` are ‖x‖² and ‖y‖² with
    noise.
    """
    hh, hx, hy, xy = gram[0, 0], gram[0, x], gram[0, y], gram[x, y]
    hr, rr, xr, yr = gram[0, 5], gram[5, 5], gram[x, 5], gram[y, 5]
    total = 0.0
    for k in range(NODES):
        unit = 1 / (upper + weights[m, k] + neutral)
        s, r, n = upper * unit, weights[m, k] * unit, neutral * unit
        squared = s * s * own + r * r * squares[m, k] + n * n * rr + 2 * (s * r * xy + n * (s * xr + r * yr))
        along = s * hx + r * hy + n * hr
        cosine = (1 + along / math.sqrt(max(squared * hh, TINY))) / 2
        if measure == COSINE:
            total += cosine
            continue
        distance = math.sqrt(max(hh - 2 * along + squared, 0.0))
        l2 = 1 - math.tanh(distance / max(math.sqrt(hh) + math.sqrt(squared), TINY) / 2)
        total += l2 if measure == L2 else (l2 + cosine) / 2
    return total / NODES


@compiled
def _information(
    gram: Array, lse: Array, row: int, head: int, weights: Array, squares: Array, measure: int, out: Array
) -> None:
    """Visual, language and total information of one head into `out`.

    gram: inner products of h, v, l, μ_v, μ_l and the neutral partial (0 without one); weights
    [2 groups, cases], log-normalisers, which are overwritten; squares [2 groups, cases], what noise adds to ‖μ‖².
    """
    # one exponential for each slot; cases below e^-690 of the largest cannot be told apart, and do not matter
    top = lse[row, head, 0]
    for m in range(lse.shape[2]):
        top = max(top, lse[row, head, m])
    for m in range(2):
        for k in range(NODES):
            top = max(top, weights[m, k])
    for m in range(2):
        own = gram[m + 3, m + 3]
        for k in range(NODES):
            weights[m, k] = exponential(weights[m, k] - top)
            squares[m, k] += own
    real, other = exponential(lse[row, head, 0] - top), exponential(lse[row, head, 1] - top)
    neutral = exponential(lse[row, head, 2] - top) if lse.shape[2] > 2 else 0.0
    own_v, own_l = gram[1, 1], gram[2, 2]
    visual = language = total = 0.0
    if measure == COSINE and lse.shape[2] == 2:
        hh, h1, h2, h3, h4 = gram[0, 0], gram[0, 1], gram[0, 2], gram[0, 3], gram[0, 4]
        cross_v, cross_l = gram[1, 4], gram[2, 3]
        for k in range(NODES):
            visual += _cosine(real, weights[1, k], own_v, squares[1, k], hh, h1, h4, cross_v)
        for k in range(NODES):
            language += _cosine(other, weights[0, k], own_l, squares[0, k], hh, h2, h3, cross_l)
        total = (1 + _all_cosines(weights, squares, hh, h3, h4, gram[3, 4]) / NODES**2) / 2
        visual, language = (1 + visual / NODES) / 2, (1 + language / NODES) / 2
    else:
        visual = _states(gram, 1, 4, real, own_v, neutral, weights, squares, LANGUAGE, measure)
        language = _states(gram, 2, 3, other, own_l, neutral, weights, squares, VISUAL, measure)
        for j in range(NODES):
            total += _states(gram, 3, 4, weights[0, j], squares[0, j], neutral, weights, squares, LANGUAGE, measure)
        total /= NODES
    out[row, head, 0], out[row, head, 1], out[row, head, 2] = visual - total, language - total, 1 - total


@compiled
def _factors(
    visual: float, language: float, least: float, alpha: float, rest: float, limit: float, one_sided: bool
) -> tuple[float, float]:
    """β and γ of one head with the targets `alpha` and `rest`."""
    if not (visual > least and language > least):
        return 1.0, 1.0
    beta, gamma = alpha * (visual + language) / visual, rest * (visual + language) / language
    beta, gamma = min(max(beta, 1 / limit), limit), min(max(gamma, 1 / limit), limit)
    if one_sided and not beta > 1:
        return 1.0, 1.0
    return beta, gamma


@compiled
def _shares(lse: Array, row: int, head: int, part: Array) -> None:
    """The share of attention of each group."""
    top, total = lse[row, head, 0], 0.0
    for m in range(1, part.shape[0]):
        top = max(top, lse[row, head, m])
    for m in range(part.shape[0]):
        part[m] = math.exp(lse[row, head, m] - top)
        total += part[m]
    for m in range(part.shape[0]):
        part[m] /= total


@compiled
def _merge(values: Array, row: int, head: int, part: Array, beta: float, gamma: float, outputs: Array) -> None:
    """The plain and the calibrated output of one head. Equal bits for factors of 1."""
    visual, language = part[VISUAL], part[LANGUAGE]
    own, other = visual * beta, language * gamma
    neutral, last = (part[2], 2) if part.shape[0] > 2 else (0.0, 0)
    for c in range(values.shape[3]):
        v, w = values[row, head, VISUAL, c], values[row, head, LANGUAGE, c]
        rest = neutral * values[row, head, last, c]
        outputs[0, row, head, c] = visual * v + language * w + rest
        outputs[1, row, head, c] = own * v + other * w + rest


@compiled
def finish(
    query: Array,
    values: Array,
    lse: Array,
    mean: Array,
    squared: Array,
    bank: Array,
    counts: Array,
    per_doubling: float,
    scale: float,
    least: Array,
    targets: Array,
    limit: float,
    one_sided: bool,
    measure: int,
    measured: Array,
    outputs: Array,
) -> None:
    """Everything after the attention was split.

    query [rows, heads, dim]; values [rows, heads, groups, dim] and lse [rows, heads, groups] of the real partials;
    mean and squared [rows, 2, kv_heads, 2, dim]; bank [tables, spreads, 2·slots]; counts [1 or rows, 2, 6], see LOW;
    least [rows, heads]; targets [1 or heads, 2]. Written are measured [rows, heads, 6], the scores, β, γ and the
    share of attention on visual positions, and outputs [2, rows, heads, dim], plain and calibrated.
    """
    rows, heads, _ = query.shape
    share = heads // mean.shape[2]
    gram = np.zeros((6, 6), np.float64)
    sums = np.empty((2, 3), np.float64)
    weights = np.empty((2, NODES), np.float64)
    squares = np.empty((2, NODES), np.float64)
    part = np.empty(lse.shape[2], np.float64)
    for row in range(rows):
        count = counts[row if counts.shape[0] > 1 else 0]
        for head in range(heads):
            goal = head if targets.shape[0] > 1 else 0
            _shares(lse, row, head, part)
            _products(query, values, mean, squared, (row, head, head // share), gram, sums)
            _add_output(gram, part)
            _cases(0, sums, scale, bank, count, per_doubling, weights, squares)
            _cases(1, sums, scale, bank, count, per_doubling, weights, squares)
            _information(gram, lse, row, head, weights, squares, measure, measured)
            beta, gamma = _factors(
                measured[row, head, 0],
                measured[row, head, 1],
                least[row, head],
                targets[goal, 0],
                targets[goal, 1],
                limit,
                one_sided,
            )
            measured[row, head, 3], measured[row, head, 4], measured[row, head, 5] = beta, gamma, part[VISUAL]
            _merge(values, row, head, part, beta, gamma, outputs)
