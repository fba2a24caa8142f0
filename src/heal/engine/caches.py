"""Key/value caches: taking back the last position, and following the rows when beams move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer, StaticSlidingWindowLayer

from heal.errors import UnsupportedError

ROW_CHANGES = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")


def prepare(cache: Cache, prompt_length: int) -> None:
    """Make sure, before the prompt is read, that its last position can be taken back."""
    for layer in cache.layers:
        if isinstance(layer, StaticSlidingWindowLayer) and prompt_length > layer.max_cache_len:
            raise UnsupportedError(
                f"the prompt ({prompt_length} positions) is longer than the sliding window of a static cache "
                f"({layer.max_cache_len}), whose last position cannot be taken back: use the dynamic cache"
            )
        if type(layer).__name__.endswith("QuantizedLayer") or not isinstance(layer, (DynamicLayer, StaticLayer)):
            raise UnsupportedError(
                f"a cache of {type(layer).__name__} cannot be cut back by one position: "
                "use the dynamic or the static cache"
            )
        if hasattr(layer, "activate_past_recording"):
            layer.activate_past_recording()


def cut_back(cache: Cache) -> None:
    """Forget the last position."""
    for layer in cache.layers:
        if isinstance(layer, StaticLayer):
            layer.cumulative_length.sub_(1)
            if isinstance(layer, StaticSlidingWindowLayer):
                layer.cumulative_length_int -= 1
        else:
            layer.crop(-1)
            if hasattr(layer, "record_past"):
                layer.record_past = False


def follow(cache: Cache, on_rows: Callable[[list[int]], None]) -> None:
    """Tell `on_rows` the source row of each new row whenever the cache's rows change; undone by `unfollow`."""

    def reorder(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(index: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = original(index, *args, **kwargs)
            on_rows(_row_list(index))
            return result

        return wrapped

    for name in ROW_CHANGES[:2]:
        setattr(cache, name, reorder(getattr(cache, name)))

    original_repeat = cache.batch_repeat_interleave

    def repeat(repeats: int) -> None:
        rows = cache.layers[0].keys.shape[0]
        original_repeat(repeats)
        on_rows([row for row in range(rows) for _ in range(repeats)])

    cache.batch_repeat_interleave = repeat


def unfollow(cache: Cache) -> None:
    for name in ROW_CHANGES:
        vars(cache).pop(name, None)


def _row_list(index: torch.Tensor | Sequence[int]) -> list[int]:
    if isinstance(index, torch.Tensor):
        if index.dtype == torch.bool:
            index = index.nonzero().flatten()
        return [int(i) for i in index.tolist()]
    return list(index)
