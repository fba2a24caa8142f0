"""The kernels of a decoding step: one launch for a whole context, or two if the context is split.

Program (p, s) serves key/value head p % kv_heads of row p // kv_heads, and part s of the context.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from heal.kernels.attention import attend_one, attend_shared, of_group
from heal.kernels.finish import finish
from heal.kernels.numeric import TINY, finite_top, log_or_empty

OTHER = ("group_row", "table_row", "target_row", "rows")
"""Numbers that a kernel is not specialised for: a longer context or another batch must not compile anything again."""


@triton.jit
@no_type_check
def _queries(query, row_step, head_step, dim_step, row, first, kv_group, head, d, DIM: tl.constexpr):
    """The queries of some heads, [heads, DIMS]."""
    place = query + row * row_step + (first + head)[:, None] * head_step + d[None, :] * dim_step
    return tl.load(place, mask=(head < kv_group)[:, None] & (d < DIM)[None, :], other=0.0)


@triton.jit(do_not_specialize=["positions", *OTHER])
@no_type_check
def whole_kernel(
    query, key, value, groups, mean, squared, count, table, places, least, targets, outputs, results,
    query_row, query_head, query_dim, key_row, key_head, key_step, key_dim, value_row, value_head, value_step,
    value_dim, group_row, group_step, table_row, least_row, target_row, positions, rows, kv_heads, kv_group,
    scale, softcap, limit,
    DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    SHARED: tl.constexpr, NEUTRAL: tl.constexpr, CAPPED: tl.constexpr, UPCAST: tl.constexpr, APPEND: tl.constexpr,
    MEASURE: tl.constexpr, ONE_SIDED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The whole step of one key/value head of one row."""
    program = tl.program_id(0)
    row, kv_head = (program // kv_heads).to(tl.int64), program % kv_heads
    d, head = tl.arange(0, DIMS), tl.arange(0, HEADS)
    key += row * key_row + kv_head * key_head
    value += row * value_row + kv_head * value_head
    groups += row * group_row
    first = kv_head * kv_group
    if SHARED:
        stacked = tl.arange(0, GROUPS * HEADS) % HEADS
        tile = _queries(query, query_row, query_head, query_dim, row, first, kv_group, stacked, d, DIM)
        if UPCAST:
            tile = tile.to(tl.float32)
        means, lses, count_v, count_l = attend_shared(
            tile, key, value, groups, 0, positions, key_step, key_dim, value_step, value_dim, group_step, scale,
            softcap, DIM, DIMS, BLOCK, HEADS, GROUPS, CAPPED, UPCAST,
        )  # fmt: skip
        visual, lse_v = of_group(means, lses, 0, HEADS, GROUPS, DIMS)
        language, lse_l = of_group(means, lses, 1, HEADS, GROUPS, DIMS)
        neutral, lse_n = language, lse_l
        if NEUTRAL:
            neutral, lse_n = of_group(means, lses, 2, HEADS, GROUPS, DIMS)
    else:
        single = tl.load(query + row * query_row + first * query_head + d * query_dim, mask=d < DIM, other=0.0)
        visual, lse_v, language, lse_l, neutral, lse_n, count_v, count_l = attend_one(
            single.to(tl.float32), key, value, groups, 0, positions, key_step, key_dim, value_step, value_dim,
            group_step, scale, softcap, DIM, DIMS, BLOCK, NEUTRAL, CAPPED,
        )  # fmt: skip
    asked = _queries(query, query_row, query_head, query_dim, row, first, kv_group, head, d, DIM).to(tl.float32)
    last = positions - 1
    new_key = tl.load(key + last * key_step + d * key_dim, mask=d < DIM, other=0.0).to(tl.float32)
    new_value = tl.load(value + last * value_step + d * value_dim, mask=d < DIM, other=0.0).to(tl.float32)
    group = tl.load(groups + last * group_step)
    finish(
        asked, visual, lse_v, language, lse_l, neutral, lse_n, count_v, count_l, group, new_key, new_value, row,
        kv_head, rows, kv_heads, kv_group, mean, squared, count, table, table_row, places, least, least_row, targets,
        target_row, limit, scale, outputs, results, DIM, DIMS, HEADS, NEUTRAL, APPEND, MEASURE, ONE_SIDED, LANES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["positions", "part", "group_row"])
@no_type_check
def split_kernel(
    query, key, value, groups, means, lses, counts,
    query_row, query_head, query_dim, key_row, key_head, key_step, key_dim, value_row, value_head, value_step,
    value_dim, group_row, group_step, positions, kv_heads, kv_group, part, scale, softcap,
    DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    SHARED: tl.constexpr, NEUTRAL: tl.constexpr, CAPPED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Split attention over one part of the context, `part` positions long.

    Into means [rows, kv_heads, parts, groups, kv_group, DIM], lses without the last and counts
    [rows, kv_heads, parts, 2].
    """
    program, split = tl.program_id(0), tl.program_id(1)
    row, kv_head = (program // kv_heads).to(tl.int64), program % kv_heads
    d, head = tl.arange(0, DIMS), tl.arange(0, HEADS)
    key += row * key_row + kv_head * key_head
    value += row * value_row + kv_head * value_head
    groups += row * group_row
    first = kv_head * kv_group
    start = split * part
    stop = tl.minimum(start + part, positions)
    names: tl.constexpr = 3 if NEUTRAL else 2
    cell = program.to(tl.int64) * tl.num_programs(1) + split
    means += cell * names * kv_group * DIM
    lses += cell * names * kv_group
    if SHARED:
        rows = tl.arange(0, GROUPS * HEADS)
        stacked = rows % HEADS
        tile = _queries(query, query_row, query_head, query_dim, row, first, kv_group, stacked, d, DIM)
        if UPCAST:
            tile = tile.to(tl.float32)
        mean, lse, count_v, count_l = attend_shared(
            tile, key, value, groups, start, stop, key_step, key_dim, value_step, value_dim, group_step, scale,
            softcap, DIM, DIMS, BLOCK, HEADS, GROUPS, CAPPED, UPCAST,
        )  # fmt: skip
        at = rows // HEADS * kv_group + stacked
        used = (stacked < kv_group) & (rows // HEADS < names)
        tl.store(means + at[:, None] * DIM + d[None, :], mean, mask=used[:, None] & (d < DIM)[None, :])
        tl.store(lses + at, lse, mask=used)
    else:
        single = tl.load(query + row * query_row + first * query_head + d * query_dim, mask=d < DIM, other=0.0)
        visual, lse_v, language, lse_l, neutral, lse_n, count_v, count_l = attend_one(
            single.to(tl.float32), key, value, groups, start, stop, key_step, key_dim, value_step, value_dim,
            group_step, scale, softcap, DIM, DIMS, BLOCK, NEUTRAL, CAPPED,
        )  # fmt: skip
        inside = (d < DIM)[None, :]
        tl.store(means + d[None, :], visual, mask=inside)
        tl.store(means + DIM + d[None, :], language, mask=inside)
        tl.store(lses + head, lse_v)
        tl.store(lses + 1 + head, lse_l)
        if NEUTRAL:
            tl.store(means + 2 * DIM + d[None, :], neutral, mask=inside)
            tl.store(lses + 2 + head, lse_n)
    tl.store(counts + cell * 2, count_v)
    tl.store(counts + cell * 2 + 1, count_l)


@triton.jit
@no_type_check
def _joined(
    means, lses, cell, parts, kv_group, which, head, d, DIM: tl.constexpr, DIMS: tl.constexpr, HEADS: tl.constexpr,
    NAMES: tl.constexpr,
):  # fmt: skip
    """One group of all parts: mean [HEADS, DIMS] and log-normaliser [HEADS]."""
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    normaliser = tl.zeros((HEADS,), tl.float32)
    total = tl.zeros((HEADS, DIMS), tl.float32)
    own = head < kv_group
    for split in range(0, parts):
        at = ((cell + split) * NAMES + which) * kv_group + head
        lse = tl.load(lses + at, mask=own, other=0.0)
        mean = tl.load(means + at[:, None] * DIM + d[None, :], mask=own[:, None] & (d < DIM)[None, :], other=0.0)
        new = tl.maximum(top, lse)
        base = finite_top(new)
        old, weight = tl.exp(top - base), tl.exp(lse - base)
        normaliser = normaliser * old + weight
        total = total * old[:, None] + weight[:, None] * mean
        top = new
    lse = log_or_empty(normaliser) + finite_top(top)
    return total / tl.where(normaliser < TINY, TINY, normaliser)[:, None], lse


@triton.jit(do_not_specialize=["positions", "parts", *OTHER])
@no_type_check
def finish_kernel(
    query, key, value, groups, means, lses, counts, mean, squared, count, table, places, least, targets, outputs,
    results, query_row, query_head, query_dim, key_row, key_head, key_step, key_dim, value_row, value_head,
    value_step, value_dim, group_row, group_step, table_row, least_row, target_row, positions, rows, kv_heads,
    kv_group, parts, scale, limit,
    DIM: tl.constexpr, DIMS: tl.constexpr, HEADS: tl.constexpr, NEUTRAL: tl.constexpr, APPEND: tl.constexpr,
    MEASURE: tl.constexpr, ONE_SIDED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The rest of the step after `split_kernel`, for one key/value head of one row."""
    program = tl.program_id(0)
    row, kv_head = (program // kv_heads).to(tl.int64), program % kv_heads
    d, head = tl.arange(0, DIMS), tl.arange(0, HEADS)
    names: tl.constexpr = 3 if NEUTRAL else 2
    cell = program.to(tl.int64) * parts
    visual, lse_v = _joined(means, lses, cell, parts, kv_group, 0, head, d, DIM, DIMS, HEADS, names)
    language, lse_l = _joined(means, lses, cell, parts, kv_group, 1, head, d, DIM, DIMS, HEADS, names)
    neutral, lse_n = language, lse_l
    if NEUTRAL:
        neutral, lse_n = _joined(means, lses, cell, parts, kv_group, 2, head, d, DIM, DIMS, HEADS, names)
    count_v, count_l = 0.0, 0.0
    for split in range(0, parts):
        count_v += tl.load(counts + (cell + split) * 2)
        count_l += tl.load(counts + (cell + split) * 2 + 1)
    asked = _queries(
        query, query_row, query_head, query_dim, row, kv_head * kv_group, kv_group, head, d, DIM
    ).to(tl.float32)  # fmt: skip
    last = positions - 1
    newest_key = key + row * key_row + kv_head * key_head + last * key_step + d * key_dim
    newest_value = value + row * value_row + kv_head * value_head + last * value_step + d * value_dim
    new_key = tl.load(newest_key, mask=d < DIM, other=0.0).to(tl.float32)
    new_value = tl.load(newest_value, mask=d < DIM, other=0.0).to(tl.float32)
    group = tl.load(groups + row * group_row + last * group_step)
    finish(
        asked, visual, lse_v, language, lse_l, neutral, lse_n, count_v, count_l, group, new_key, new_value, row,
        kv_head, rows, kv_heads, kv_group, mean, squared, count, table, table_row, places, least, least_row, targets,
        target_row, limit, scale, outputs, results, DIM, DIMS, HEADS, NEUTRAL, APPEND, MEASURE, ONE_SIDED, LANES,
    )  # fmt: skip
