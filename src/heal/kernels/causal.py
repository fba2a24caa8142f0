"""The contributions of heads (stage 1) on the device: one read of the weights of o_proj, and a small sum.

Two launches, and not one with atomic additions: their order, and with it the last bits of a contribution, would
change from run to run, and a head type with them.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from heal.analysis.contribution import Shift
from heal.analysis.information import MEASURES, Measure
from heal.kernels.launch import FUSION, on
from heal.kernels.numeric import root
from heal.kernels.scores import dissimilarity

TILE = 4096
"""Weights that a program holds at once."""
TILES = 4
"""Tiles of a program."""


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def sums_kernel(
    moved, weight, stream, sums, rows, heads, hidden, weight_row, weight_column, times,
    DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """⟨y, s⟩ and ‖s‖² of the shift s of one head in some hidden dimensions, into sums [blocks, 2, rows, heads]."""
    head, block = tl.program_id(0), tl.program_id(1)
    d, o = tl.arange(0, DIMS), tl.arange(0, BLOCK)
    for row in range(0, rows):
        u = tl.load(moved + (row * heads + head) * DIM + d, mask=d < DIM, other=0.0)
        along = tl.zeros((BLOCK,), tl.float32)
        squared = tl.zeros((BLOCK,), tl.float32)
        for time in range(0, times):
            at = (block * times + time) * BLOCK + o
            inside = at < hidden
            place = weight + at[:, None].to(tl.int64) * weight_row + (head * DIM + d)[None, :] * weight_column
            w = tl.load(place, mask=inside[:, None] & (d < DIM)[None, :], other=0.0).to(tl.float32)
            y = tl.load(stream + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
            shift = tl.sum(w * u[None, :], 1)
            along += y * shift
            squared += shift * shift
        result = sums + (block * 2 * rows + row) * heads + head
        tl.store(result, tl.sum(along, 0))
        tl.store(result + rows * heads, tl.sum(squared, 0))


@triton.jit(do_not_specialize=["rows", "blocks"])
@no_type_check
def contribution_kernel(
    stream, sums, random, out, rows, heads, hidden, blocks,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, MEASURE: tl.constexpr, RANDOM: tl.constexpr,
):  # fmt: skip
    """The contributions of all heads of one row."""
    row = tl.program_id(0)
    head, o = tl.arange(0, HEADS), tl.arange(0, BLOCK)
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, hidden, BLOCK):
        y = tl.load(stream + row * hidden + start + o, mask=start + o < hidden, other=0.0).to(tl.float32)
        square += y * y
    norm = root(tl.sum(square, 0) + tl.zeros((HEADS,), tl.float32))
    along = tl.zeros((HEADS,), tl.float32)
    squared = tl.zeros((HEADS,), tl.float32)
    if RANDOM:
        squared += tl.load(random + row * heads + head, mask=head < heads, other=0.0)
    for block in range(0, blocks):
        place = sums + (block * 2 * rows + row) * heads + head
        along += tl.load(place, mask=head < heads, other=0.0)
        squared += tl.load(place + rows * heads, mask=head < heads, other=0.0)
    tl.store(out + row * heads + head, dissimilarity(along, squared, norm, MEASURE), mask=head < heads)


def fused_contribution(
    stream: Float[Tensor, "rows hidden"],
    shift: Shift,
    weight: Float[Tensor, "hidden heads_dim"],
    measure: Measure = "cosine",
) -> Float[Tensor, "rows heads"]:
    """heal.analysis.contribution.projected_contribution; products of half-precision weights are exact here."""
    rows, heads, dim = shift.moved.shape
    hidden = stream.shape[1]
    dims = triton.next_power_of_2(dim)
    size = max(1, TILE // dims)
    blocks = triton.cdiv(hidden, size * TILES)
    stream, moved = stream.contiguous(), shift.moved.float().contiguous()
    sums = torch.empty(blocks, 2, rows, heads, dtype=torch.float32, device=stream.device)
    out = torch.empty(rows, heads, dtype=torch.float32, device=stream.device)
    random = out if shift.random is None else shift.random.float().contiguous()
    with on(stream.device):
        sums_kernel[(heads, blocks)](
            moved, weight, stream, sums, rows, heads, hidden, *weight.stride(), TILES, dim, dims, size,
            num_warps=4, **FUSION,
        )  # fmt: skip
        contribution_kernel[(rows,)](
            stream, sums, random, out, rows, heads, hidden, blocks, triton.next_power_of_2(heads), 1024,
            MEASURES.index(measure), shift.random is not None, num_warps=4, **FUSION,
        )  # fmt: skip
    return out
