"""KV caches: remove the last positions, and follow the rows when beams move."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from heal.engine.transformers_api import (
    BaseQuantizedLayer,
    Cache,
    DynamicLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
    crop_layer,
    has_overwritten,
    is_recording,
    layer_classes,
    record_past,
)
from heal.errors import UnsupportedError

ROW_CHANGES = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave")


def prepare(cache: Cache, prompt_length: int) -> bool:
    """Check that the last prompt position can be removed again, before the prompt is read.

    Returns whether sliding windows were recording their past already, and should continue.
    """
    recording = is_recording(cache)
    for kind in layer_classes(cache):
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
    record_past(cache)
    return recording


def cut_back(cache: Cache, positions: int = 1, record: bool = False) -> None:
    """Remove the last positions. `record`: sliding windows continue to record, so that more can be removed later."""
    for layer in cache.layers:
        crop_layer(layer, positions, record)


def check_crop(cache: Cache, positions: int) -> None:
    """Refuse a crop that transformers would refuse or compute incorrectly."""
    if positions < 0:
        raise UnsupportedError("crop takes the number of positions to remove as a negative number: cache.crop(-2)")
    for layer in cache.layers if positions else ():
        if has_overwritten(layer):
            raise UnsupportedError(
                "a static cache with a sliding window overwrites positions, so it cannot be cropped: use the dynamic "
                "cache"
            )
        window = getattr(layer, "sliding_window", None)
        if window is None or isinstance(layer, StaticLayer) or not layer.is_initialized:
            continue
        length = int(layer.get_seq_length())
        if length >= window and layer.keys.shape[-2] - positions < min(window - 1, length - positions):
            raise UnsupportedError(
                f"a sliding window of {window} positions no longer holds what a crop by {positions} positions needs: "
                "call cache.activate_past_recording() before these tokens are read"
            )


def follow(cache: Cache, on_rows: Callable[[list[int]], None], on_crop: Callable[[int], None]) -> None:
    """Report changes of the cache to these functions until `unfollow` is called.

    `on_rows` gets the source row of each new row, `on_crop` the number of positions removed at the end.
    """
    here = weakref.ref(cache)  # a strong reference from its own methods would keep the cache alive

    def wrapped(name: str) -> Callable[..., None]:
        def change(argument: Any) -> None:
            own = here()
            assert own is not None
            rows = own.layers[0].keys.shape[0] if own.layers and own.layers[0].is_initialized else 0
            getattr(type(own), name)(own, argument)
            on_rows(_source_rows(name, argument, rows))

        return change

    def crop(tokens_to_remove: int) -> None:
        own = here()
        assert own is not None
        check_crop(own, -tokens_to_remove)
        on_crop(-tokens_to_remove)
        cut_back(own, -tokens_to_remove, record=is_recording(own))

    for name in ROW_CHANGES:
        setattr(cache, name, wrapped(name))
    vars(cache)["crop"] = crop


def unfollow(cache: Cache) -> None:
    for name in (*ROW_CHANGES, "crop"):
        vars(cache).pop(name, None)


def _source_rows(name: str, argument: Any, rows: int) -> list[int]:
    if name == "batch_repeat_interleave":
        return [row for row in range(rows) for _ in range(argument)]
    index = torch.as_tensor(argument)
    return [int(i) for i in (index.nonzero().flatten() if index.dtype == torch.bool else index).tolist()]
