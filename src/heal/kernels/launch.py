"""Launch the kernels of a decoding step: sizes of blocks, number of parts, and arguments."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from heal.analysis.information import MEASURES
from heal.kernels import interpreted
from heal.kernels.fused import FusedOutcome, FusedStep
from heal.kernels.step import finish_kernel, split_kernel, whole_kernel

WAVES = 2
"""Programs per processor that a split context should give."""
FUSION = {"enable_fp_fusion": True}
"""Multiply and add in one rounding. Said here, because Triton's default is about to change."""
SHORTEST = 256
"""Positions that are worth a program of their own."""


class Sizes(NamedTuple):
    """What a kernel is compiled for, apart from options."""

    dims: int
    block: int
    heads: int
    groups: int
    shared: bool
    upcast: bool
    warps: int
    stages: int


@cache
def sizes(dim: int, kv_group: int, neutral: bool, dtype: torch.dtype, upcast: bool) -> Sizes:
    """Blocks for a head dimension, a number of query heads per key/value head, and a type of cache."""
    dims = max(16, triton.next_power_of_2(dim))
    if kv_group == 1:
        return Sizes(dims, max(8, 2048 // dims), 1, 1, False, False, 4, 2)
    groups = 4 if neutral else 2
    heads = max(triton.next_power_of_2(kv_group), 16 // groups)  # tensor cores want tiles of 16 rows
    wide = dtype == torch.float32
    block = min(64, max(16, (2048 if wide else 4096) // dims))
    large = dims >= 256 or (wide and heads * groups > 16)  # products in fp32 take registers instead of tensor cores
    return Sizes(dims, block, heads, groups, True, upcast, 8 if large else 4, 1 if wide and dims >= 256 else 2)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def parts_for(programs: int, positions: int, device: torch.device) -> int:
    """The number of parts of the context that fills the GPU."""
    wanted = -(-WAVES * processors(device) // programs)
    return max(1, min(wanted, positions // SHORTEST))


def lanes(heads: int) -> int:
    """States of a head that are computed at once: few enough for the registers."""
    return min(128, max(16, 256 // heads))


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be that of the layer."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _step(shared: Tensor) -> int:
    """The stride of the first axis, 0 if it has a single entry for all."""
    return 0 if len(shared) == 1 else shared.stride(0)


def launch_step(at: FusedStep, parts: int | None = None) -> FusedOutcome:
    query, key, value, moments = at.query, at.key, at.value, at.moments
    assert moments.mean.is_contiguous()
    assert moments.squared.is_contiguous()
    rows, heads, dim = query.shape
    kv_heads, positions = key.shape[1:3]
    kv_group = heads // kv_heads
    programs = rows * kv_heads
    size = sizes(dim, kv_group, at.neutral, key.dtype, interpreted() and key.dtype == torch.bfloat16)
    parts = parts_for(programs, positions, key.device) if parts is None else parts
    outputs = query.new_empty(2, rows, heads, dim)
    results = query.new_empty(rows, heads, 6, dtype=torch.float32)
    tables, places = at.tables.single
    strides = (
        *query.stride(), *key.stride(), *value.stride(), *at.groups.stride(), _step(tables), at.least.stride(0),
        _step(at.targets),
    )  # fmt: skip
    limit = math.inf if at.limit is None else at.limit
    stored = (moments.mean, moments.squared, moments.count, tables, places, at.least, at.targets, outputs, results)
    options = (at.append, MEASURES.index(at.measure), at.one_sided)
    with on(key.device):
        if parts == 1:
            whole_kernel[(programs,)](
                query, key, value, at.groups, *stored, *strides, positions, rows, kv_heads, kv_group, at.scale,
                at.softcap or 1.0, limit, dim, size.dims, size.block, size.heads, size.groups, size.shared,
                at.neutral, at.softcap is not None, size.upcast, *options, lanes(size.heads),
                num_warps=size.warps, num_stages=size.stages, **FUSION,
            )  # fmt: skip
            return FusedOutcome(outputs, results)
        partials = split(query, key, value, at.groups, at.scale, at.softcap, at.neutral, parts)
        own = size.heads if size.shared else 1
        finish_kernel[(programs,)](
            query, key, value, at.groups, *partials, *stored, *strides, positions, rows, kv_heads, kv_group,
            partials[2].shape[1], at.scale, limit, dim, size.dims, own, at.neutral, *options, lanes(own),
            num_warps=4, **FUSION,
        )  # fmt: skip
    return FusedOutcome(outputs, results)


def split(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    scale: float,
    softcap: float | None,
    neutral: bool,
    parts: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split attention over parts of the context.

    Means [rows · kv_heads, parts, groups, kv_group, dim], log-normalisers without the last, and the numbers of
    visual and of language positions [rows · kv_heads, parts, 2]. The last parts may be left out.
    """
    rows, heads, dim = query.shape
    kv_heads, positions = key.shape[1:3]
    kv_group = heads // kv_heads
    size = sizes(dim, kv_group, neutral, key.dtype, interpreted() and key.dtype == torch.bfloat16)
    part = -(-positions // (parts * size.block)) * size.block
    parts = -(-positions // part)
    shape = (rows * kv_heads, parts, 3 if neutral else 2, kv_group)
    means = query.new_empty(*shape, dim, dtype=torch.float32)
    lses = query.new_empty(shape, dtype=torch.float32)
    counts = query.new_empty(rows * kv_heads, parts, 2, dtype=torch.float32)
    split_kernel[(rows * kv_heads, parts)](
        query, key, value, groups, means, lses, counts, *query.stride(), *key.stride(), *value.stride(),
        *groups.stride(), positions, kv_heads, kv_group, part, scale, softcap or 1.0, dim, size.dims, size.block,
        size.heads, size.groups, size.shared, neutral, softcap is not None, size.upcast,
        num_warps=size.warps, num_stages=size.stages, **FUSION,
    )  # fmt: skip
    return means, lses, counts
