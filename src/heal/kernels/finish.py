"""The end of a decoding step on the device: running moments, noise world, scores, factors and calibrated output."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.kernels.noise_world import SLOTS, SPREADS
from heal.kernels.numeric import at_least
from heal.kernels.scores import information, shares


@triton.jit
@no_type_check
def updated(mean, squared, place, at, seen, newest, count, group, name, APPEND: tl.constexpr):
    """Mean and squared deviations at a place, after the newest position was added if its group has this name."""
    average = tl.load(mean + place + at, mask=seen, other=0.0)
    deviation = tl.load(squared + place + at, mask=seen, other=0.0)
    if APPEND:
        grows = group + at * 0 == name
        share = 1.0 / at_least(count, 1.0)
        delta = newest - average
        average = tl.where(grows, average + delta * share, average)
        deviation = tl.where(grows, deviation + delta * delta * (1 - share), deviation)
        tl.store(mean + place + at, average, mask=seen & grows)
        tl.store(squared + place + at, deviation, mask=seen & grows)
    return average, deviation


@triton.jit
@no_type_check
def factors(visual, language, least, goal_v, goal_l, limit, ONE_SIDED: tl.constexpr):
    """As heal.analysis.calibration.joint_factors. A limit of infinity is none."""
    mixed = (visual > least) & (language > least)
    total = visual + language
    beta, gamma = goal_v * total / tl.where(mixed, visual, 1.0), goal_l * total / tl.where(mixed, language, 1.0)
    beta = tl.minimum(tl.maximum(beta, 1 / limit), limit)
    gamma = tl.minimum(tl.maximum(gamma, 1 / limit), limit)
    if ONE_SIDED:
        mixed = mixed & (beta > 1)
    return tl.where(mixed, beta, 1.0), tl.where(mixed, gamma, 1.0)


@triton.jit
@no_type_check
def finish(
    query, visual, lse_v, language, lse_l, neutral, lse_n, count_v, count_l, group, new_key, new_value, row, kv_head,
    rows, kv_heads, kv_group, mean, squared, count, table, table_row, places, least, least_row, targets, target_row,
    limit, scale, outputs, results,
    DIM: tl.constexpr, DIMS: tl.constexpr, HEADS: tl.constexpr, NEUTRAL: tl.constexpr, APPEND: tl.constexpr,
    MEASURE: tl.constexpr, ONE_SIDED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Everything after the split attention, for the query heads of one key/value head of one row.

    `query` and the means are [HEADS, DIMS] in fp32, the log-normalisers [HEADS]. `new_key` and `new_value` are the
    newest position [DIMS], `group` its group. Written are the plain and the calibrated output into `outputs`
    [2, rows, heads, DIM], and visual, language and total information, β, γ and the share of attention on visual
    positions into `results` [rows, heads, 6].
    """
    d, head = tl.arange(0, DIMS), tl.arange(0, HEADS)
    seen, own = d < DIM, head < kv_group
    step = kv_heads * 2 * DIM  # from group to group
    place = row * 2 * step + kv_head * 2 * DIM
    key_v, wide_v = updated(mean, squared, place, d, seen, new_key, count_v, group, 0, APPEND)
    fake_v, vary_v = updated(mean, squared, place + DIM, d, seen, new_value, count_v, group, 0, APPEND)
    key_l, wide_l = updated(mean, squared, place + step, d, seen, new_key, count_l, group, 1, APPEND)
    fake_l, vary_l = updated(mean, squared, place + step + DIM, d, seen, new_value, count_l, group, 1, APPEND)
    if APPEND:  # the number of positions is known from the pass over them: nothing is read that another head writes
        tl.store(count + row * 2, count_v, mask=kv_head == 0)
        tl.store(count + row * 2 + 1, count_l, mask=kv_head == 0)

    square = query * query
    share_v, share_l, share_n = shares(lse_v, lse_l, lse_n, NEUTRAL)
    h = share_v[:, None] * visual + share_l[:, None] * language
    if NEUTRAL:
        h += share_n[:, None] * neutral
    table += row * table_row
    places += row * tl.minimum(table_row, 2)
    about_v, about_l, about = information(
        h, visual, language, neutral, fake_v[None, :], fake_l[None, :], lse_v, lse_l, lse_n,
        tl.sum(query * key_v[None, :], 1) * scale, tl.sum(query * key_l[None, :], 1) * scale,
        tl.sum(square * wide_v[None, :], 1), tl.sum(square * wide_l[None, :], 1),
        tl.load(places), tl.load(places + 1), tl.sum(vary_v, 0), tl.sum(vary_l, 0),
        table, table + SPREADS * 2 * SLOTS, NEUTRAL, MEASURE, LANES,
    )  # fmt: skip

    at = kv_head * kv_group + head
    goal_v = tl.load(targets + at * target_row, mask=own, other=0.5)
    goal_l = tl.load(targets + at * target_row + 1, mask=own, other=0.5)
    floor = tl.load(least + row * least_row + at, mask=own, other=float("inf"))
    beta, gamma = factors(about_v, about_l, floor, goal_v, goal_l, limit, ONE_SIDED)
    # factors of 1 leave every bit of the plain output
    shift = ((beta - 1) * share_v)[:, None] * visual + ((gamma - 1) * share_l)[:, None] * language
    changes = (beta != 1) | (gamma != 1)
    after = tl.where(changes[:, None], h + shift, h)
    heads = kv_heads * kv_group
    entries = outputs + (row * heads + at)[:, None] * DIM + d[None, :]
    inside = own[:, None] & seen[None, :]
    tl.store(entries, h.to(outputs.dtype.element_ty), mask=inside)
    tl.store(entries + rows * heads * DIM, after.to(outputs.dtype.element_ty), mask=inside)
    results += (row * heads + at) * 6
    tl.store(results, about_v, mask=own)
    tl.store(results + 1, about_l, mask=own)
    tl.store(results + 2, about, mask=own)
    tl.store(results + 3, beta, mask=own)
    tl.store(results + 4, gamma, mask=own)
    tl.store(results + 5, share_v, mask=own)
