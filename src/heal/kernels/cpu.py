"""One decoding step of one layer as one function for CPUs, compiled by Numba.

It splits the attention of the newest query by position group (for small caches; larger ones come split), updates the
running moments, and computes expected scores, factors, the plain and the calibrated output: the same as
`split_stacked`, `Moments.append`, `expected_scores`, `joint_factors` and `Split.scaled`, which are its oracles. The
arrays of a step are small, so that elsewhere the number of operations decides the cost.
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
COSINE, L2, BOTH = 0, 1, 2
VISUAL, LANGUAGE = 0, 1
TINY = 1e-38
CALLED_FROM_PYTHON = ("split_rows", "append", "finish")
"""The functions that others call; the rest is compiled into them. Torch does not see these calls, so that
`heal.launch_counter` watches them by name."""
# sums may be reordered, but NaN and infinity must survive
FAST = {"reassoc", "contract", "arcp", "nsz"}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call and keep the result on disk."""
    # type checkers that tests wrap around functions cannot be compiled
    return njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")(inspect.unwrap(function))


@compiled
def split_rows(query: Array, key: Array, value: Array, codes: Array, scale: float, values: Array, lse: Array) -> None:
    """Softmax attention over each position group: means into `values`, log-normalisers into `lse`.

    query [rows, heads, dim]; key and value [rows, kv_heads, positions, dim]; codes [rows, positions], the group of
    each position (255: none); values [rows, heads, groups, dim]; lse [rows, heads, groups].
    """
    rows, heads, dim = query.shape
    kv_heads, positions = key.shape[1], key.shape[2]
    groups = lse.shape[2]
    share = heads // kv_heads
    scores = np.empty(positions, np.float32)
    top = np.empty(groups, np.float32)
    total = np.empty(groups, np.float32)
    for row in range(rows):
        for head in range(heads):
            keys, states = key[row, head // share], value[row, head // share]
            own = query[row, head]
            top[:] = -np.inf
            for at in range(positions):
                code = codes[row, at]
                if code == 255:
                    continue
                dot = np.float32(0)
                for c in range(dim):
                    dot += own[c] * keys[at, c]
                scores[at] = dot * scale
                if not scores[at] <= top[code]:  # NaN wins
                    top[code] = scores[at]
            total[:] = 0
            values[row, head] = 0
            for at in range(positions):
                code = codes[row, at]
                if code == 255:
                    continue
                weight = math.exp(scores[at] - top[code])
                total[code] += weight
                for c in range(dim):
                    values[row, head, code, c] += weight * states[at, c]
            for code in range(groups):
                if total[code] == 0:
                    lse[row, head, code] = -np.inf
                    continue
                lse[row, head, code] = math.log(total[code]) + top[code]
                for c in range(dim):
                    values[row, head, code, c] /= total[code]


@compiled
def append(mean: Array, squared: Array, count: Array, key: Array, value: Array, member: Array) -> None:
    """Add one position to the moments of the group `member[row]` (of no group if it is not 0 or 1), in place.

    mean and squared [rows, groups, kv_heads, 2, dim]; count [rows, groups]; key and value [rows, kv_heads, dim].
    """
    rows, kv_heads, dim = key.shape
    for row in range(rows):
        code = member[row]
        if code > 1:
            continue
        count[row, code] += 1
        share = np.float32(1) / count[row, code]
        for head in range(kv_heads):
            for which in range(2):
                states = key[row, head] if which == 0 else value[row, head]
                for c in range(dim):
                    delta = states[c] - mean[row, code, head, which, c]
                    mean[row, code, head, which, c] += delta * share
                    squared[row, code, head, which, c] += delta * delta * (1 - share)


@compiled
def _cases(
    query: Array,
    mean: Array,
    squared: Array,
    table: Array,
    place: float,
    per_doubling: float,
    scale: float,
    out: Array,
) -> None:
    """L and C/n of the K cases of one group into out[0] and out[1], from slot 1 on.

    mean and squared [dim] of its keys; table [spreads, 2, slots]; `place` is the entry of s² = 1.
    """
    centre, spread = 0.0, 0.0
    for c in range(query.shape[0]):
        centre += query[c] * mean[c]
        spread += query[c] * query[c] * squared[c]
    last = table.shape[0] - 1
    where = place + per_doubling * math.log2(spread) if spread > 0 else 0.0
    if not where > 0:  # NaN as well: it stays in the centre
        where = 0.0
    if where > last - 0.001:
        where = last - 0.001
    index = int(where)
    rest = where - index
    for k in range(1, table.shape[2]):
        for which in range(2):
            low = table[index, which, k]
            out[which, k] = low + rest * (table[index + 1, which, k] - low)
        out[0, k] += centre * scale


@compiled
def _similarity(along: float, squared: float, length: float, measure: int) -> float:
    """From h·H, E‖H‖² and ‖h‖²."""
    cosine = along / math.sqrt(max(squared * length, TINY))
    if measure == COSINE:
        return (1 + cosine) / 2
    distance = math.sqrt(max(length - 2 * along + squared, 0.0))
    l2 = 1 - math.tanh(distance / max(math.sqrt(length) + math.sqrt(squared), TINY) / 2)
    return l2 if measure == L2 else (l2 + (1 + cosine) / 2) / 2


@compiled
def _mean_similarity(
    gram: Array, x: int, y: int, upper: float, lower: Array, own: float, others: Array, measure: int
) -> float:
    """The mean over the cases of the language group of Sim(h, H), H = s·x + (1−s)·y.

    `upper` and `lower` are the normalisers of the visual group and of the cases of the language group; `own` and
    `others` are ‖x‖² and ‖y‖² with their noise.
    """
    length, total = gram[0, 0], 0.0
    hx, hy, xy = gram[0, x], gram[0, y], gram[x, y]
    if measure == COSINE:
        for k in range(lower.shape[0]):
            s = upper / (upper + lower[k])
            r = 1 - s
            squared = s * s * own + 2 * s * r * xy + r * r * others[k]
            total += (s * hx + r * hy) / math.sqrt(max(squared * length, TINY))
        return (1 + total / lower.shape[0]) / 2
    for k in range(lower.shape[0]):
        s = upper / (upper + lower[k])
        r = 1 - s
        squared = s * s * own + 2 * s * r * xy + r * r * others[k]
        total += _similarity(s * hx + r * hy, squared, length, measure)
    return total / lower.shape[0]


@compiled
def _mean_with_neutral(
    gram: Array, x: int, y: int, upper: float, lower: Array, neutral: float, own: float, others: Array, measure: int
) -> float:
    """`_mean_similarity` where a neutral group, vector 5, is the same in every state."""
    total = 0.0
    for k in range(lower.shape[0]):
        whole = upper + lower[k] + neutral
        s, r, n = upper / whole, lower[k] / whole, neutral / whole
        along = s * gram[0, x] + r * gram[0, y] + n * gram[0, 5]
        squared = s * s * own + r * r * others[k] + n * n * gram[5, 5]
        squared += 2 * (s * r * gram[x, y] + s * n * gram[x, 5] + r * n * gram[y, 5])
        total += _similarity(along, squared, gram[0, 0], measure)
    return total / lower.shape[0]


@compiled
def _information(
    vectors: Array, lse: Array, cases: Array, variance: Array, gram: Array, measure: int, out: Array
) -> None:
    """Visual, language and total information of one head into `out`.

    vectors: h, v, l, μ_v, μ_l (and the neutral partial), [5 or 6, dim]; lse [groups]; cases [2 groups, 2, slots],
    which is overwritten; variance [2], Σ(v − μ)² of the values of each group; gram is scratch.
    """
    count, slots = vectors.shape[0], cases.shape[2]
    for a in range(count):
        for b in range(a + 1):
            dot = 0.0
            for c in range(vectors.shape[1]):
                dot += vectors[a, c] * vectors[b, c]
            gram[a, b] = gram[b, a] = dot
    # one exponential for each slot; cases below e^-690 of the largest cannot be told apart, and do not matter
    top = lse[0]
    for m in range(lse.shape[0]):
        top = max(top, lse[m])
    for m in range(2):
        cases[m, 0, 0] = lse[m]
        for k in range(1, slots):
            top = max(top, cases[m, 0, k])
    for m in range(2):
        for k in range(slots):
            cases[m, 0, k] = max(math.exp(cases[m, 0, k] - top), 1e-300)
            mean = m + 1 if k == 0 else m + 3
            cases[m, 1, k] = gram[mean, mean] + cases[m, 1, k] * variance[m]
    neutral = math.exp(lse[2] - top) if count > 5 else 0.0
    visual = _states(gram, cases, neutral, 0, 1, slots, count, measure)
    language, total = 0.0, 0.0
    for j in range(1, slots):
        language += _states(gram, cases, neutral, j, 0, 1, count, measure)
        total += _states(gram, cases, neutral, j, 1, slots, count, measure)
    language, total = language / (slots - 1), total / (slots - 1)
    out[0], out[1], out[2] = visual - total, language - total, 1 - total


@compiled
def _states(
    gram: Array, cases: Array, neutral: float, j: int, first: int, end: int, count: int, measure: int
) -> float:
    """The mean similarity for slot j of the visual group and the slots from `first` on of the language group."""
    x, y = 1 if j == 0 else 3, 2 if first == 0 else 4
    upper, own = cases[0, 0, j], cases[0, 1, j]
    lower, others = cases[1, 0, first:end], cases[1, 1, first:end]
    if count > 5:
        return _mean_with_neutral(gram, x, y, upper, lower, neutral, own, others, measure)
    return _mean_similarity(gram, x, y, upper, lower, own, others, measure)


@compiled
def _factors(scores: Array, least: float, targets: Array, limit: float, one_sided: bool, out: Array) -> None:
    """β and γ of one head into `out`."""
    out[0] = out[1] = 1.0
    visual, language = scores[0], scores[1]
    if not (visual > least and language > least):
        return
    beta = targets[0] * (visual + language) / visual
    gamma = targets[1] * (visual + language) / language
    beta, gamma = min(max(beta, 1 / limit), limit), min(max(gamma, 1 / limit), limit)
    if one_sided and not beta > 1:
        return
    out[0], out[1] = beta, gamma


@compiled
def finish(
    query: Array,
    values: Array,
    lse: Array,
    mean: Array,
    squared: Array,
    table: Array,
    places: Array,
    per_doubling: float,
    scale: float,
    least: Array,
    targets: Array,
    limit: float,
    one_sided: bool,
    measure: int,
    scores: Array,
    factors: Array,
    plain: Array,
    out: Array,
) -> None:
    """Everything after the attention was split.

    query [rows, heads, dim]; values [rows, heads, groups, dim] and lse [rows, heads, groups] of the real partials;
    mean and squared [rows, 2, kv_heads, 2, dim]; table [1 or rows, 2, spreads, 2, slots]; places [1 or rows, 2];
    least [rows, heads]; targets [1 or heads, 2]. Written are scores [rows, heads, 3], factors [rows, heads, 2], and
    the plain and the calibrated output [rows, heads, dim].
    """
    rows, heads, dim = query.shape
    groups, share = lse.shape[2], heads // mean.shape[2]
    vectors = np.empty((groups + 3, dim), np.float64)
    gram = np.empty((6, 6), np.float64)
    cases = np.zeros((2, 2, table.shape[4]), np.float64)
    variance = np.empty(2, np.float64)
    part = np.empty(groups, np.float64)
    for row in range(rows):
        own = row if table.shape[0] > 1 else 0
        for head in range(heads):
            kv = head // share
            top = lse[row, head, 0]
            for m in range(1, groups):
                top = max(top, lse[row, head, m])
            total = 0.0
            for m in range(groups):
                part[m] = math.exp(lse[row, head, m] - top)
                total += part[m]
            for m in range(groups):
                part[m] /= total
            for c in range(dim):
                h = 0.0
                for m in range(groups):
                    h += part[m] * values[row, head, m, c]
                plain[row, head, c] = h
                vectors[0, c] = h
                vectors[1, c] = values[row, head, VISUAL, c]
                vectors[2, c] = values[row, head, LANGUAGE, c]
                vectors[3, c] = mean[row, VISUAL, kv, 1, c]
                vectors[4, c] = mean[row, LANGUAGE, kv, 1, c]
                if groups > 2:
                    vectors[5, c] = values[row, head, 2, c]
            for m in range(2):
                cases[m, 1, 0] = 0.0  # the real partial has no noise
                _cases(
                    query[row, head],
                    mean[row, m, kv, 0],
                    squared[row, m, kv, 0],
                    table[own, m],
                    places[own, m],
                    per_doubling,
                    scale,
                    cases[m],
                )
                spread = 0.0
                for c in range(dim):
                    spread += squared[row, m, kv, 1, c]
                variance[m] = spread
            _information(vectors, lse[row, head], cases, variance, gram, measure, scores[row, head])
            goal = targets[head] if targets.shape[0] > 1 else targets[0]
            _factors(scores[row, head], least[row, head], goal, limit, one_sided, factors[row, head])
            part[VISUAL] *= factors[row, head, 0]
            part[LANGUAGE] *= factors[row, head, 1]
            for c in range(dim):
                h = 0.0
                for m in range(groups):
                    h += part[m] * values[row, head, m, c]
                out[row, head, c] = h
