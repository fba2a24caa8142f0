"""Key/value caches: taking back the last position, and following the rows when beams move."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import (
    BaseQuantizedLayer,
    Cache,
    DynamicLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from heal.errors import UnsupportedError

ROW_CHANGES = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")


def prepare(cache: Cache, prompt_length: int) -> None:
    """Make sure, before the prompt is read, that its last position can be taken back."""
    later = getattr(cache, "layer_class_to_replicate", None)
    for kind in {type(layer) for layer in cache.layers} | ({later} if isinstance(later, type) else set()):
        if issubclass(kind, BaseQuantizedLayer) or not issubclass(kind, (DynamicLayer, StaticLayer)):
            raise UnsupportedError(
                f"a cache of {kind.__name__} cannot be cut back by one position: use the dynamic or the static cache"
            )
    for layer in cache.layers:
        if isinstance(layer, StaticSlidingWindowLayer) and prompt_length > layer.max_cache_len:
            raise UnsupportedError(
                f"the prompt ({prompt_length} positions) is longer than the sliding window of a static cache "
                f"({layer.max_cache_len}), whose last position cannot be taken back: use the dynamic cache"
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
    here = weakref.ref(cache)  # the cache must not keep itself alive through its own methods

    def wrapped(name: str) -> Callable[..., None]:
        def change(argument: Any) -> None:
            own = here()
            assert own is not None
            rows = own.layers[0].keys.shape[0] if own.layers and own.layers[0].is_initialized else 0
            getattr(type(own), name)(own, argument)
            on_rows(_source_rows(name, argument, rows))

        return change

    for name in ROW_CHANGES:
        setattr(cache, name, wrapped(name))


def unfollow(cache: Cache) -> None:
    for name in ROW_CHANGES:
        vars(cache).pop(name, None)


def _source_rows(name: str, argument: Any, rows: int) -> list[int]:
    if name == "batch_repeat_interleave":
        return [row for row in range(rows) for _ in range(argument)]
    index = torch.as_tensor(argument)
    return [int(i) for i in (index.nonzero().flatten() if index.dtype == torch.bool else index).tolist()]
