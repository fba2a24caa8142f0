"""The end of a decoding step on the device: running moments, noise world, scores, factors and calibrated output."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.kernels.noise_world import noise_world
from heal.kernels.numeric import at_least, root
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
def factors(
    visual, language, calibrated, target, limit, LIMITED: tl.constexpr, ONE_SIDED: tl.constexpr
):  # fmt: skip
    """As heal.analysis.calibration.factors."""
    mixed = calibrated & (visual > 0) & (language > 0)
    total = visual + language
    if ONE_SIDED:
        mixed = mixed & (visual < target * total)
    beta = tl.where(mixed, target * total / tl.where(mixed, visual, 1.0), 1.0)
    gamma = tl.where(mixed, (1 - target) * total / tl.where(mixed, language, 1.0), 1.0)
    if LIMITED:
        beta = tl.minimum(tl.maximum(beta, 1 / limit), limit)
        gamma = tl.minimum(tl.maximum(gamma, 1 / limit), limit)
    return beta, gamma


@triton.jit
@no_type_check
def largest(x):
    """The largest entry of each row of absolute values, +∞ if one is NaN."""
    return tl.max(tl.where(x == x, x, float("inf")), 1)


@triton.jit
@no_type_check
def finish(
    query, visual, lse_v, language, lse_l, neutral, lse_n, count_v, count_l, group, new_key, new_value, row, kv_head,
    kv_heads, kv_group, mean, squared, count, table, per_octave, per_unit, calibrated, calibrated_row, targets,
    target, limit, scale, out, results, result_step,
    DIM: tl.constexpr, DIMS: tl.constexpr, HEADS: tl.constexpr, NEUTRAL: tl.constexpr, APPEND: tl.constexpr,
    MEASURE: tl.constexpr, LIMITED: tl.constexpr, ONE_SIDED: tl.constexpr, PER_HEAD: tl.constexpr,
    NODES: tl.constexpr, PAIRS: tl.constexpr, COUNTS: tl.constexpr, SPREADS: tl.constexpr,
):  # fmt: skip
    """Everything after the split attention, for the query heads of one key/value head of one row.

    `query` and the means are [HEADS, DIMS] in fp32, the log-normalisers [HEADS]. `new_key` and `new_value` are the
    newest position [DIMS], `group` its group. `results` is [7, rows, heads]: visual, language and total information,
    β, γ, the largest change of the output, and the largest entry of the plain output.
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

    many_v, many_l = at_least(count_v, 1.0), at_least(count_l, 1.0)
    scaled = query * scale
    square = scaled * scaled
    centre_v, centre_l = tl.sum(scaled * key_v[None, :], 1), tl.sum(scaled * key_l[None, :], 1)
    spread_v = root(tl.sum(square * wide_v[None, :], 1) / many_v)
    spread_l = root(tl.sum(square * wide_l[None, :], 1) / many_l)
    pair = tl.arange(0, PAIRS)  # of noise worlds: visual, language
    known = pair < NODES * NODES
    weight = tl.where(known, 1.0 / (NODES * NODES), 0.0)
    node_v, node_l = pair // NODES, pair % NODES
    noise_v, varied_v = noise_world(
        centre_v, spread_v, count_v, node_v, known, table, per_octave, per_unit, COUNTS, SPREADS
    )
    noise_l, varied_l = noise_world(
        centre_l, spread_l, count_l, node_l, known, table, per_octave, per_unit, COUNTS, SPREADS
    )
    share_v, share_l, share_n = shares(lse_v, lse_l, lse_n, NEUTRAL)
    h = share_v[:, None] * visual + share_l[:, None] * language
    if NEUTRAL:
        h += share_n[:, None] * neutral
    about_v, about_l, about = information(
        h, visual, language, neutral, fake_v[None, :], fake_l[None, :], lse_v, lse_l, lse_n, noise_v, noise_l,
        varied_v * (tl.sum(vary_v, 0) / many_v), varied_l * (tl.sum(vary_l, 0) / many_l),
        weight, NEUTRAL, MEASURE,
    )  # fmt: skip

    at = kv_head * kv_group + head
    if PER_HEAD:
        target = tl.load(targets + at, mask=own, other=0.5)
    chosen = tl.load(calibrated + row * calibrated_row + at, mask=own, other=0) != 0
    beta, gamma = factors(about_v, about_l, chosen, target, limit, LIMITED, ONE_SIDED)
    # factors of 1 leave every bit of the plain output
    shift = ((beta - 1) * share_v)[:, None] * visual + ((gamma - 1) * share_l)[:, None] * language
    changes = (beta != 1) | (gamma != 1)
    after = tl.where(changes[:, None], h + shift, h)
    heads = kv_heads * kv_group
    entries = out + (row * heads + at)[:, None] * DIM + d[None, :]
    tl.store(entries, after.to(out.dtype.element_ty), mask=own[:, None] & seen[None, :])
    results += row * heads + at
    tl.store(results, about_v, mask=own)
    tl.store(results + result_step, about_l, mask=own)
    tl.store(results + 2 * result_step, about, mask=own)
    tl.store(results + 3 * result_step, beta, mask=own)
    tl.store(results + 4 * result_step, gamma, mask=own)
    tl.store(results + 5 * result_step, largest(tl.abs(after - h)), mask=own)
    tl.store(results + 6 * result_step, largest(tl.abs(h)), mask=own)
