"""Where the heads look in the image, as a part of a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heal.engine.patches import PatchRecorder
from heal.engine.transformers_api import is_compiled
from heal.errors import ConfigError
from heal.methods.base import Handle
from heal.request import Request
from heal.trace_parts import WHOLE, Patches

if TYPE_CHECKING:
    from heal.vlm import VLM


def record_patches(vlm: VLM, request: Request, handle: Handle, options: Mapping[str, Any]) -> None:
    """Record where the heads look in this generation, or say why that cannot be done."""
    several = [name for name in ("num_beams", "num_return_sequences") if vlm.option(name, options) not in (None, 1)]
    if several:
        raise ConfigError(f"trace='patches' needs rows that do not move: leave {several[0]} out")
    if handle.runtime.overrides("search"):
        raise ConfigError("trace='patches' cannot follow a method that searches: use trace=True")
    if is_compiled(vlm.model):
        raise ConfigError("trace='patches' needs a model that is not compiled: use trace=True")
    if any(len(images) != 1 for images in request.source.images):
        raise ConfigError("trace='patches' needs exactly one image for each prompt")
    handle.attachment.patches = PatchRecorder(len(handle.attachment.layout.layers))


def patches_of(handle: Handle, request: Request, row: int, steps: Sequence[int]) -> Patches | None:
    """Where the heads look at these steps. None if it was not recorded."""
    recorder = handle.attachment.patches
    if recorder is None:
        return None
    levels, unit = recorder.found(row, max(steps, default=-1) + 1)
    chosen = list(steps)
    grid, box = _place(request, row, levels.shape[-1])
    return Patches(levels[chosen].numpy(), unit[chosen].numpy(), grid, box)


def _place(request: Request, row: int, count: int) -> tuple[tuple[int, int] | None, tuple[float, ...]]:
    """The rows and columns of the patches, and the part of the image that they cover. None if it is not known."""
    processor = getattr(request.source.processor, "image_processor", None)
    sizes, pixels = request.arguments.get("image_grid_thw"), request.arguments.get("pixel_values")
    if sizes is not None:
        _, high, wide = (int(n) for n in sizes[row])
        merged = getattr(processor, "merge_size", 1)
        grid = (high // merged, wide // merged)
        return (grid if grid[0] * grid[1] == count else None), WHOLE
    side = math.isqrt(count)
    # one square picture per prompt; tiles and padding have another layout
    if side * side != count or pixels is None or pixels.ndim != 4 or len(pixels) != len(request.source.images):
        return None, WHOLE
    if getattr(processor, "do_pad", False) or pixels.shape[-1] != pixels.shape[-2]:
        return None, WHOLE
    if not getattr(processor, "do_center_crop", False) or "shortest_edge" not in (
        getattr(processor, "size", None) or {}
    ):
        return (side, side), WHOLE
    wide, high = request.source.images[row][0].size
    short = min(wide, high)
    left, top = (wide - short) / 2 / wide, (high - short) / 2 / high
    return (side, side), (left, top, 1 - left, 1 - top)
