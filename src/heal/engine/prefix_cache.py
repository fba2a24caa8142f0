"""Prefix cache: methods that get the same prompt share the KV cache of all its positions except the last."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heal.engine import attention
from heal.engine.layout import Layout
from heal.engine.locks import lock_of
from heal.engine.repetition import last_position
from heal.engine.shadowing import shadow
from heal.engine.transformers_api import Cache, DynamicCache, DynamicLayer, is_offloaded, layer_classes

MOST = 2
"""Number of cached prompts and encoder calls: those of the model and of one branch."""
COMPARED = ("inputs_embeds", "attention_mask", "position_ids")


@dataclass(frozen=True)
class CachedPrefix:
    """The decoder's arguments for a prompt, and the keys and values of all its positions except the last."""

    arguments: dict[str, Any]
    layers: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, arguments: dict[str, Any], cache: Cache) -> CachedPrefix:
        layers = tuple((layer.keys[:, :, :-1], layer.values[:, :, :-1]) for layer in cache.layers)
        return cls({name: arguments.get(name) for name in COMPARED}, layers)

    def copies(self, arguments: dict[str, Any]) -> int:
        """The number of repetitions of each row, if the arguments are for the same prompt; 0 otherwise."""
        rows, own = arguments["inputs_embeds"].shape[0], self.arguments["inputs_embeds"].shape[0]
        times = rows // own if rows % own == 0 else 0
        same = all(_same(self.arguments[name], arguments.get(name), times, name) for name in COMPARED)
        return times if same else 0

    def fill(self, cache: Cache, times: int) -> None:
        for index, (keys, values) in enumerate(self.layers):
            cache.update(keys.repeat_interleave(times, 0), values.repeat_interleave(times, 0), index)


@contextmanager
def prefix_cache(model: Any) -> Iterator[None]:
    """In this context, a repeated prompt costs only one pass of its last position.

    The prefix cache is for generation: for a cached prompt, the decoder returns only the last position. Images are
    not encoded again. Rows may be repeated, as in beam search. A method that changes or needs other prompt positions
    (`Runtime.whole_prompt`) gets a full prefill, and so does every cache that is not a plain DynamicCache.
    """
    layout = Layout.of(model)
    with lock_of(model).session(), ExitStack() as undo:
        undo.callback(shadow(layout.decoder, "forward", _reader(layout)))
        for name in ("get_image_features", "get_video_features"):
            if hasattr(model.base_model, name):
                undo.callback(shadow(model.base_model, name, _encoder(getattr(model.base_model, name))))
        yield


def _reader(layout: Layout) -> Callable[..., Any]:
    original, known = layout.decoder.forward, list[CachedPrefix]()

    def forward(*args: Any, **kwargs: Any) -> Any:
        cache, embeds = kwargs.get("past_key_values"), kwargs.get("inputs_embeds")
        attached = attention.attached_to(layout.attention[0])
        new = embeds is not None and embeds.shape[1] > 1 and isinstance(cache, Cache) and cache.get_seq_length() == 0
        if args or not new or not _ordinary(cache) or (attached is not None and attached.whole_prompt):
            return original(*args, **kwargs)
        for prompt in known:
            if times := prompt.copies(kwargs):
                _to_front(known, prompt)
                prompt.fill(cache, times)
                return original(**last_position(kwargs, cache, layout.kinds))
        output = original(**kwargs)
        _to_front(known, CachedPrefix.of(kwargs, cache))
        return output

    return forward


def _encoder(original: Callable[..., Any]) -> Callable[..., Any]:
    signature, known = inspect.signature(original), list[tuple[dict[str, Any], Any]]()

    def encode(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        found = next((call for call in known if _same(call[0], given, 1)), None)
        found = found or (given, original(*args, **kwargs))
        _to_front(known, found)
        return copy.copy(found[1])  # generate() writes the features of beams into the object that it receives

    # generate() inspects the signature
    encode.__signature__ = signature  # type: ignore[attr-defined]
    return encode


def _to_front(known: list[Any], found: Any) -> None:
    known[:] = [found, *(other for other in known if other is not found)][:MOST]


def _ordinary(cache: Any) -> bool:
    """Whether a cache returns the keys and values as they were stored."""
    return type(cache) is DynamicCache and layer_classes(cache) == {DynamicLayer} and not is_offloaded(cache)


def _same(known: Any, given: Any, times: int, name: str = "") -> bool:
    """Whether a value equals a cached one with each row repeated `times` times."""
    if isinstance(known, dict) and isinstance(given, dict):
        return known.keys() == given.keys() and all(_same(known[key], given[key], times, key) for key in known)
    if not isinstance(known, Tensor) or not isinstance(given, Tensor):
        return type(known) is type(given) and not isinstance(known, (list, tuple)) and bool(known == given)
    if known.dtype != given.dtype or known.device != given.device:
        return False
    axis = max(0, known.dim() - 2) if name == "position_ids" else 0
    return torch.equal(known.repeat_interleave(times, axis), given)
