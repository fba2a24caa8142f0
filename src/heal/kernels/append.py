"""Running moments on the device, for layers that calibrate nothing at a step: one launch."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from jaxtyping import Float, UInt8
from torch import Tensor

from heal.analysis.moments import Moments
from heal.kernels.finish import updated
from heal.kernels.launch import FUSION, on


@triton.jit(do_not_specialize=["last", "group_row"])
@no_type_check
def append_kernel(
    key, value, groups, mean, squared, count, key_row, key_head, key_step, key_dim, value_row, value_head, value_step,
    value_dim, group_row, group_step, last, kv_heads, DIM: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """All key/value heads of one row, so that nothing is read that another program writes."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DIMS)
    seen = d < DIM
    group = tl.load(groups + row * group_row + last * group_step)
    many_v = tl.load(count + row * 2) + (group == 0).to(tl.float32)
    many_l = tl.load(count + row * 2 + 1) + (group == 1).to(tl.float32)
    key += row * key_row + last * key_step + d * key_dim
    value += row * value_row + last * value_step + d * value_dim
    step = kv_heads * 2 * DIM  # from group to group
    for kv_head in range(0, kv_heads):
        new_key = tl.load(key + kv_head * key_head, mask=seen, other=0.0).to(tl.float32)
        new_value = tl.load(value + kv_head * value_head, mask=seen, other=0.0).to(tl.float32)
        place = row * 2 * step + kv_head * 2 * DIM
        updated(mean, squared, place, d, seen, new_key, many_v, group, 0, True)
        updated(mean, squared, place + DIM, d, seen, new_value, many_v, group, 0, True)
        updated(mean, squared, place + step, d, seen, new_key, many_l, group, 1, True)
        updated(mean, squared, place + step + DIM, d, seen, new_value, many_l, group, 1, True)
    tl.store(count + row * 2, many_v)
    tl.store(count + row * 2 + 1, many_l)


def fused_append(
    moments: Moments,
    key: Float[Tensor, "rows kv_heads positions dim"],
    value: Float[Tensor, "rows kv_heads positions dim"],
    groups: UInt8[Tensor, "rows positions"],
) -> None:
    """heal.analysis.moments.Moments.append for the newest position of a cache, in place."""
    rows, kv_heads, positions, dim = key.shape
    with on(key.device):
        append_kernel[(rows,)](
            key, value, groups, moments.mean, moments.squared, moments.count, *key.stride(), *value.stride(),
            *groups.stride(), positions - 1, kv_heads, dim, triton.next_power_of_2(dim),
            num_warps=4 if dim > 64 else 2, **FUSION,
        )  # fmt: skip
