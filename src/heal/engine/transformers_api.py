"""All private or unstable APIs of transformers that heal uses, each under one name.

No other module of the package imports a submodule of transformers or reads an underscore attribute of a model. If a
release of transformers changes one of them, tests/engine/test_transformers_api.py names it, and it is fixed here.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import (
    BaseQuantizedLayer,
    Cache,
    DynamicCache,
    DynamicLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.generation import GenerateBeamDecoderOnlyOutput
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from heal.errors import HealWarning

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "BaseModelOutputWithPooling",
    "BaseQuantizedLayer",
    "Cache",
    "DynamicCache",
    "DynamicLayer",
    "GenerateBeamDecoderOnlyOutput",
    "StaticLayer",
    "StaticSlidingWindowLayer",
    "sdpa_attention_forward",
    "sdpa_mask",
]

TESTED = ((5, 22), (5, 23))
"""Tested versions of transformers: from the first, up to but not including the second."""


def warn_if_untested(version: str) -> None:
    """Issue one HealWarning if this version of transformers is outside the tested range."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    first, end = TESTED
    if not first <= found < end:
        low, high = (".".join(map(str, numbers)) for numbers in TESTED)
        warnings.warn(
            f"transformers {version} is installed, but heal uses private parts of transformers and is tested with "
            f"{low} up to, but not including, {high}: results may be wrong. Install transformers>={low},<{high}",
            HealWarning,
            stacklevel=3,
        )


warn_if_untested(transformers.__version__)


# ── configurations and modules ────────────────────────────────────────────────────────────────────────────────


def attention_name(config: Any) -> str:
    """The attention implementation that a configuration asks for."""
    return config._attn_implementation


def checkpoint_name(model: Any) -> str:
    """The folder or hub name that a model was loaded from. Empty if it was not loaded."""
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def eager_attention(module: nn.Module) -> Callable[..., Any] | None:
    """The eager attention function in the source module of this module's model, if there is one."""
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


def execution_device(module: nn.Module) -> torch.device | None:
    """The device on which accelerate runs a module that it has offloaded; None for other modules."""
    found = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return None if found is None else torch.device(found)


def is_compiled_wrapper(module: Any) -> bool:
    """Whether this is what torch.compile(module) returns."""
    return hasattr(module, "_orig_mod")


def is_compiled(module: nn.Module) -> bool:
    """Whether a module was compiled, by torch.compile(module), module.compile() or a compiled forward."""
    own = vars(module)
    functions = (own.get("forward"), own.get("generate"))
    return (
        is_compiled_wrapper(module)
        or own.get("_compiled_call_impl") is not None
        or any(hasattr(f, "_torchdynamo_orig_callable") for f in functions)
    )


# ── the steps of generate() ───────────────────────────────────────────────────────────────────────────────────


def prefill(model: Any, ids: Tensor, config: Any, arguments: dict[str, Any]) -> Any:
    """Run the prefill as generate() does."""
    return model._prefill(ids, config, arguments, is_first_iteration=True)


def inputs_of_token(model: Any, ids: Tensor, arguments: dict[str, Any]) -> dict[str, Any]:
    """The model's arguments for the last tokens of a sequence."""
    return model.prepare_inputs_for_generation(ids, next_sequence_length=1, **arguments)


def updated_arguments(model: Any, outputs: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of generate() after a pass: the cache, a longer mask, the next position."""
    return model._update_model_kwargs_for_generation(outputs, arguments)


def repeated_encodings(model: Any, ids: Tensor, outputs: dict[str, Any], copies: int) -> dict[str, Any]:
    """Repeat the outputs of the image encoders `copies` times per sample, as beams need them."""
    return model._expand_multimodal_outputs(ids, outputs, expand_size=copies)


def prompt_positions(model: Any, arguments: Mapping[str, Any]) -> Tensor:
    """The position ids that generate() gives a prompt.

    Models with M-RoPE store an offset as a side effect; it is restored.
    """
    base = model.base_model
    kept = getattr(base, "rope_deltas", None)
    try:
        found = model._prepare_position_ids_for_generation(arguments["input_ids"], dict(arguments))
    finally:
        if hasattr(base, "rope_deltas"):
            base.rope_deltas = kept
    return torch.as_tensor(found)


# ── layers of a cache ─────────────────────────────────────────────────────────────────────────────────────────


def layer_classes(cache: Cache) -> set[type]:
    """The classes of a cache's layers, and the class of layers that it will add."""
    later = getattr(cache, "layer_class_to_replicate", None)
    return {type(layer) for layer in cache.layers} | ({later} if isinstance(later, type) else set())


def is_offloaded(cache: Cache) -> bool:
    """Whether the cache offloads its layers to another device."""
    return bool(cache.offloading)


def record_past(cache: Cache) -> None:
    """Make sliding windows store the positions that leave them, so that a crop can restore them."""
    for layer in cache.layers:
        if hasattr(layer, "activate_past_recording"):
            layer.activate_past_recording()


def is_recording(cache: Cache) -> bool:
    """Whether sliding windows store the positions that leave them."""
    return any(getattr(layer, "record_past", False) for layer in cache.layers)


def crop_layer(layer: Any, positions: int, record: bool) -> None:
    """Remove the last positions of one layer.

    `record`: a sliding window keeps all positions that have left it, so that later crops can go further back. The
    layer's own crop would discard them.
    """
    if isinstance(layer, StaticLayer):
        if isinstance(layer, StaticSlidingWindowLayer):
            layer.cumulative_length_int -= positions
        layer.cumulative_length.sub_(positions)
    elif record and getattr(layer, "record_past", False):
        layer.keys, layer.values = layer.keys[:, :, :-positions], layer.values[:, :, :-positions]
        layer.cumulative_length -= positions
    else:
        layer.crop(-positions)
        if hasattr(layer, "record_past"):
            layer.record_past = record


def has_overwritten(layer: Any) -> bool:
    """Whether a sliding window of a static cache has overwritten positions."""
    return isinstance(layer, StaticSlidingWindowLayer) and layer.cumulative_length_int > layer.max_cache_len
