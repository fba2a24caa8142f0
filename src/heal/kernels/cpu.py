"""What follows the attention of one decoding step of one layer, for CPUs, compiled by Numba.

It computes expected scores, factors, the plain and the calibrated output: the same as `expected_scores`,
`joint_factors` and `Split.scaled`, which are its oracles. The arrays of a step are small, so that elsewhere the number
of operations decides the cost. Loops have a fixed length where possible, so that they become vector instructions.
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
NODES = 8
"""Cases of each group, as in the tables."""
WIDTH = 1 + NODES
"""Slots of a group: the real partial and its cases."""
LOW, HIGH, SHARE, SHIFT, PART, PLACE = range(6)
"""Columns of `counts`: the two computed tables around a number of positions, the share of the second one, what is added
to L, the factor of C, and the entry of s² = 1."""


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
    sums: Array, scale: float, bank: Array, count: Array, per_doubling: float, normalisers: Array, noise: Array
) -> None:
    """The log-normalisers of the K cases of one group, and what the noise adds to the square of their value.

    sums: see `_products`; bank [tables, spreads, 2·slots]; count: see LOW. Slot 0 is left for the real partial.
    """
    last = bank.shape[1] - 1
    where = count[PLACE] + per_doubling * math.log2(sums[1]) if sums[1] > 0 else 0.0
    if not where > 0:  # NaN as well: it stays in the centre
        where = 0.0
    if where > last - 0.001:
        where = last - 0.001
    index = int(where)
    rest, share = where - index, count[SHARE]
    low, after = bank[int(count[LOW]), index], bank[int(count[LOW]), index + 1]
    high, beyond = bank[int(count[HIGH]), index], bank[int(count[HIGH]), index + 1]
    centre, factor = count[SHIFT] + sums[0] * scale, count[PART] * sums[2]
    for k in range(1, WIDTH):
        here, there = low[k] + share * (high[k] - low[k]), after[k] + share * (beyond[k] - after[k])
        normalisers[k] = here + rest * (there - here) + centre
    for k in range(WIDTH + 1, 2 * WIDTH):
        here, there = low[k] + share * (high[k] - low[k]), after[k] + share * (beyond[k] - after[k])
        noise[k - WIDTH] = (here + rest * (there - here)) * factor


@compiled
def _products(
    query: Array, values: Array, mean: Array, squared: Array, place: tuple[int, int, int], gram: Array, sums: Array
) -> None:
    """Inner products of v, l, μ_v, μ_l and r into `gram` (see `_information`), in one pass over the channels.

    Into `sums` [2 groups, 3]: q·μ of the keys, q²·Σ(k − μ)², and Σ(v − μ)². `place`: row, head, key/value head.
    """
    row, head, kv = place
    vv = ll = vl = mm = nn = mn = vm = vn = lm = ln = 0.0
    centre_v = centre_l = spread_v = spread_l = own_v = own_l = 0.0
    for c in range(query.shape[2]):
        q = np.float64(query[row, head, c])
        v, l = np.float64(values[row, head, VISUAL, c]), np.float64(values[row, head, LANGUAGE, c])
        m, n = np.float64(mean[row, VISUAL, kv, 1, c]), np.float64(mean[row, LANGUAGE, kv, 1, c])
        vv += v * v
        ll += l * l
        vl += v * l
        mm += m * m
        nn += n * n
        mn += m * n
        vm += v * m
        vn += v * n
        lm += l * m
        ln += l * n
        centre_v += q * mean[row, VISUAL, kv, 0, c]
        centre_l += q * mean[row, LANGUAGE, kv, 0, c]
        spread_v += q * q * squared[row, VISUAL, kv, 0, c]
        spread_l += q * q * squared[row, LANGUAGE, kv, 0, c]
        own_v += squared[row, VISUAL, kv, 1, c]
        own_l += squared[row, LANGUAGE, kv, 1, c]
    gram[1, 1], gram[2, 2], gram[3, 3], gram[4, 4] = vv, ll, mm, nn
    gram[1, 2] = gram[2, 1] = vl
    gram[1, 3] = gram[3, 1] = vm
    gram[1, 4] = gram[4, 1] = vn
    gram[2, 3] = gram[3, 2] = lm
    gram[2, 4] = gram[4, 2] = ln
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
def _states(
    gram: Array, x: int, y: int, upper: float, own: float, neutral: float, lower: Array, others: Array, measure: int
) -> float:
    """The mean over the cases of group y of Sim(h, H), H = s·x + r·y + n·(the neutral partial).

    `upper`, `lower[1:]` and `neutral` are their normalisers; `own` and `others[1:]` are ‖x‖² and ‖y‖² with noise.
    """
    hh, hx, hy, xy = gram[0, 0], gram[0, x], gram[0, y], gram[x, y]
    hr, rr, xr, yr = gram[0, 5], gram[5, 5], gram[x, 5], gram[y, 5]
    total = 0.0
    if measure == COSINE:
        for k in range(1, WIDTH):
            unit = 1 / (upper + lower[k] + neutral)
            s, r, n = upper * unit, lower[k] * unit, neutral * unit
            squared = s * s * own + r * r * others[k] + n * n * rr + 2 * (s * r * xy + n * (s * xr + r * yr))
            total += (s * hx + r * hy + n * hr) / math.sqrt(max(squared * hh, TINY))
        return (1 + total / NODES) / 2
    for k in range(1, WIDTH):
        unit = 1 / (upper + lower[k] + neutral)
        s, r, n = upper * unit, lower[k] * unit, neutral * unit
        squared = s * s * own + r * r * others[k] + n * n * rr + 2 * (s * r * xy + n * (s * xr + r * yr))
        along = s * hx + r * hy + n * hr
        distance = math.sqrt(max(hh - 2 * along + squared, 0.0))
        l2 = 1 - math.tanh(distance / max(math.sqrt(hh) + math.sqrt(squared), TINY) / 2)
        if measure == BOTH:
            l2 = (l2 + (1 + along / math.sqrt(max(squared * hh, TINY))) / 2) / 2
        total += l2
    return total / NODES


@compiled
def _information(gram: Array, lse: Array, weights: Array, squares: Array, measure: int, out: Array) -> None:
    """Visual, language and total information of one head into `out`.

    gram: inner products of h, v, l, μ_v, μ_l and the neutral partial (0 without one); lse [groups]; weights
    [2 groups, slots], log-normalisers, which are overwritten; squares [2 groups, slots], what noise adds to ‖μ‖².
    """
    # one exponential for each slot; cases below e^-690 of the largest cannot be told apart, and do not matter
    top = lse[0]
    for m in range(lse.shape[0]):
        top = max(top, lse[m])
    for m in range(2):
        weights[m, 0] = lse[m]
        for k in range(1, WIDTH):
            top = max(top, weights[m, k])
    for m in range(2):
        for k in range(WIDTH):
            weights[m, k] = exponential(weights[m, k] - top)
        for k in range(1, WIDTH):
            squares[m, k] += gram[m + 3, m + 3]
        squares[m, 0] = gram[m + 1, m + 1]
    neutral = exponential(lse[2] - top) if lse.shape[0] > 2 else 0.0
    visual = _states(gram, 1, 4, weights[0, 0], squares[0, 0], neutral, weights[1], squares[1], measure)
    language = _states(gram, 2, 3, weights[1, 0], squares[1, 0], neutral, weights[0], squares[0], measure)
    total = 0.0
    for j in range(1, WIDTH):
        total += _states(gram, 3, 4, weights[0, j], squares[0, j], neutral, weights[1], squares[1], measure)
    total /= NODES
    out[0], out[1], out[2] = visual - total, language - total, 1 - total


@compiled
def _factors(scores: Array, least: float, targets: Array, limit: float, one_sided: bool) -> tuple[float, float]:
    """β and γ of one head."""
    visual, language = scores[0], scores[1]
    if not (visual > least and language > least):
        return 1.0, 1.0
    beta = targets[0] * (visual + language) / visual
    gamma = targets[1] * (visual + language) / language
    beta, gamma = min(max(beta, 1 / limit), limit), min(max(gamma, 1 / limit), limit)
    if one_sided and not beta > 1:
        return 1.0, 1.0
    return beta, gamma


@compiled
def _shares(lse: Array, part: Array) -> None:
    """The share of attention of each group."""
    top, total = lse[0], 0.0
    for m in range(1, part.shape[0]):
        top = max(top, lse[m])
    for m in range(part.shape[0]):
        part[m] = math.exp(lse[m] - top)
        total += part[m]
    for m in range(part.shape[0]):
        part[m] /= total


@compiled
def _merge(values: Array, part: Array, beta: float, gamma: float, plain: Array, out: Array) -> None:
    """The plain and the calibrated output of one head. Equal bits for factors of 1."""
    visual, language = part[VISUAL], part[LANGUAGE]
    own, other = visual * beta, language * gamma
    if part.shape[0] > 2:
        for c in range(plain.shape[0]):
            rest = part[2] * values[2, c]
            plain[c] = visual * values[VISUAL, c] + language * values[LANGUAGE, c] + rest
            out[c] = own * values[VISUAL, c] + other * values[LANGUAGE, c] + rest
        return
    for c in range(plain.shape[0]):
        plain[c] = visual * values[VISUAL, c] + language * values[LANGUAGE, c]
        out[c] = own * values[VISUAL, c] + other * values[LANGUAGE, c]


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
    least [rows, heads]; targets [1 or heads, 2]. Written are measured [rows, heads, 5], the three scores, β and γ, and
    outputs [2, rows, heads, dim], plain and calibrated.
    """
    rows, heads, _ = query.shape
    share = heads // mean.shape[2]
    gram = np.zeros((6, 6), np.float64)
    sums = np.empty((2, 3), np.float64)
    weights = np.zeros((2, WIDTH), np.float64)
    squares = np.zeros((2, WIDTH), np.float64)
    part = np.empty(lse.shape[2], np.float64)
    for row in range(rows):
        count = counts[row] if counts.shape[0] > 1 else counts[0]
        for head in range(heads):
            own = measured[row, head]
            _shares(lse[row, head], part)
            _products(query, values, mean, squared, (row, head, head // share), gram, sums)
            _add_output(gram, part)
            for m in range(2):
                _cases(sums[m], scale, bank, count[m], per_doubling, weights[m], squares[m])
            _information(gram, lse[row, head], weights, squares, measure, own)
            goal = targets[head] if targets.shape[0] > 1 else targets[0]
            own[3], own[4] = _factors(own, least[row, head], goal, limit, one_sided)
            _merge(values[row, head], part, own[3], own[4], outputs[0, row, head], outputs[1, row, head])
