"""Split attention of one query position on the device: one pass over the keys and values of one key/value head.

Both forms keep a running maximum per group, so that groups cannot overflow or underflow each other. A position that
is not attended (group 255) is never read from the values: what padding holds cannot reach the output.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.kernels.numeric import TINY, capped, finite_top, log_or_empty


@triton.jit
@no_type_check
def _grown(top, normaliser, total, scores, v, member):
    """One more position in every slot: a slot is an online softmax of its own, so that nothing is reduced here."""
    scores = tl.where(member, scores, float("-inf"))
    new = tl.maximum(top, scores)  # drops NaN, which the weight brings back
    base = finite_top(new)
    old, weight = tl.exp(top - base), tl.exp(scores - base)
    total = total * old[:, None] + tl.where(member[:, None], weight[:, None] * v, 0.0)
    return new, normaliser * old + weight, total


@triton.jit
@no_type_check
def _joined(top, normaliser, total):
    """The softmax mean [1, dim] and log-normaliser [1] of all slots."""
    base = finite_top(tl.max(top, 0))
    weight = tl.exp(top - base)
    whole = tl.sum(normaliser * weight, 0)
    mean = tl.sum(total * weight[:, None], 0) / tl.where(whole < TINY, TINY, whole)
    lse = log_or_empty(whole) + base
    return mean[None, :], tl.full((1,), 0.0, tl.float32) + lse


@triton.jit
@no_type_check
def attend_one(
    query, key, value, groups, start, stop, key_step, key_dim, value_step, value_dim, group_step, scale, softcap,
    DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr, NEUTRAL: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """One query head per key/value head, by products and sums. `query` is a pointer to a contiguous head here.

    Returns mean and log-normaliser of the visual, language and neutral group, and the number of visual and of
    language positions.
    """
    d, slot = tl.arange(0, DIMS), tl.arange(0, BLOCK)
    top0 = tl.full((BLOCK,), float("-inf"), tl.float32)
    top1 = tl.full((BLOCK,), float("-inf"), tl.float32)
    top2 = tl.full((BLOCK,), float("-inf"), tl.float32)
    sum0 = tl.zeros((BLOCK,), tl.float32)
    sum1 = tl.zeros((BLOCK,), tl.float32)
    sum2 = tl.zeros((BLOCK,), tl.float32)
    total0 = tl.zeros((BLOCK, DIMS), tl.float32)
    total1 = tl.zeros((BLOCK, DIMS), tl.float32)
    total2 = tl.zeros((BLOCK if NEUTRAL else 1, DIMS), tl.float32)
    count0 = tl.zeros((BLOCK,), tl.float32)
    count1 = tl.zeros((BLOCK,), tl.float32)
    for first in range(start, stop, BLOCK):
        at = first + slot
        inside = (at < stop)[:, None] & (d < DIM)[None, :]
        group = tl.load(groups + at * group_step, mask=at < stop, other=255)
        k = tl.load(key + at[:, None] * key_step + d[None, :] * key_dim, mask=inside, other=0.0)
        seen = inside & (group != 255)[:, None]
        v = tl.load(value + at[:, None] * value_step + d[None, :] * value_dim, mask=seen, other=0.0).to(tl.float32)
        scores = capped(tl.sum(k.to(tl.float32) * query[None, :], 1) * scale, softcap, CAPPED)
        top0, sum0, total0 = _grown(top0, sum0, total0, scores, v, group == 0)
        top1, sum1, total1 = _grown(top1, sum1, total1, scores, v, group == 1)
        if NEUTRAL:
            top2, sum2, total2 = _grown(top2, sum2, total2, scores, v, group == 2)
        count0 += (group == 0).to(tl.float32)
        count1 += (group == 1).to(tl.float32)
    visual, lse0 = _joined(top0, sum0, total0)
    language, lse1 = _joined(top1, sum1, total1)
    neutral, lse2 = language, lse1
    if NEUTRAL:
        neutral, lse2 = _joined(top2, sum2, total2)
    return visual, lse0, language, lse1, neutral, lse2, tl.sum(count0, 0), tl.sum(count1, 0)


@triton.jit
@no_type_check
def attend_shared(
    query, key, value, groups, start, stop, key_step, key_dim, value_step, value_dim, group_step, scale, softcap,
    DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    CAPPED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Several query heads that share keys and values, by matrix products. `query` is a block [GROUPS·HEADS, DIMS].

    Row g·HEADS + h of every product belongs to head h and counts only the positions of group g: all groups share one
    product over the keys and one over the values, and the tile of 16 rows that tensor cores want is filled with them.
    """
    ROWS: tl.constexpr = GROUPS * HEADS
    d, slot = tl.arange(0, DIMS), tl.arange(0, BLOCK)
    own = (tl.arange(0, ROWS) // HEADS)[:, None]
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    normaliser = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, DIMS), tl.float32)
    count0 = tl.zeros((BLOCK,), tl.float32)
    count1 = tl.zeros((BLOCK,), tl.float32)
    for first in range(start, stop, BLOCK):
        at = first + slot
        inside = (at < stop)[:, None] & (d < DIM)[None, :]
        group = tl.load(groups + at * group_step, mask=at < stop, other=255)
        k = tl.load(key + at[:, None] * key_step + d[None, :] * key_dim, mask=inside, other=0.0)
        seen = inside & (group != 255)[:, None]
        v = tl.load(value + at[:, None] * value_step + d[None, :] * value_dim, mask=seen, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = capped(tl.dot(query, tl.trans(k), input_precision="ieee") * scale, softcap, CAPPED)
        scores = tl.where(group[None, :] == own, scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))  # drops NaN, which the weights bring back
        base = finite_top(new)
        old, weights = tl.exp(top - base), tl.exp(scores - base[:, None])
        normaliser = normaliser * old + tl.sum(weights, 1)
        high = weights.to(v.dtype)
        total = tl.dot(high, v, total * old[:, None], input_precision="ieee")
        if v.dtype != tl.float32:  # what half precision cuts off the weights: the product is as exact as in fp32
            low = (weights - high.to(tl.float32)).to(v.dtype)
            total = tl.dot(low, v, total, input_precision="ieee")
        top = new
        count0 += (group == 0).to(tl.float32)
        count1 += (group == 1).to(tl.float32)
    mean = total / tl.where(normaliser < TINY, TINY, normaliser)[:, None]
    lse = log_or_empty(normaliser) + finite_top(top)
    return mean, lse, tl.sum(count0, 0), tl.sum(count1, 0)


@triton.jit
@no_type_check
def of_group(mean, lse, which, HEADS: tl.constexpr, GROUPS: tl.constexpr, DIMS: tl.constexpr):
    """The rows of one group from the result of `attend_shared`."""
    groups = tl.arange(0, GROUPS)
    stacked = tl.reshape(mean, (GROUPS, HEADS, DIMS))
    value = tl.sum(tl.where((groups == which)[:, None, None], stacked, 0.0), 0)
    normaliser = tl.sum(tl.where((groups == which)[:, None], tl.reshape(lse, (GROUPS, HEADS)), 0.0), 0)
    return value, normaliser
