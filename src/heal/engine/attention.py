"""The attention function that transformers calls for the language backbone while a method is attached."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from heal.engine.transformers_api import (
    ALL_ATTENTION_FUNCTIONS,
    attention_name,
    eager_attention,
    sdpa_attention_forward,
    sdpa_mask,
)
from heal.errors import UnsupportedError

NAME = "heal"


@runtime_checkable
class Attends(Protocol):
    """What an attention module calls while a method is attached to it."""

    @property
    def whole_prompt(self) -> bool: ...

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]: ...


# module -> attachment; weak, so that a forgotten model is not kept alive
_attached: weakref.WeakKeyDictionary[nn.Module, Attends] = weakref.WeakKeyDictionary()


def claim(module: nn.Module, attachment: Attends) -> None:
    _attached[module] = attachment


def release(module: nn.Module) -> None:
    _attached.pop(module, None)


def attached_to(module: nn.Module) -> Attends | None:
    return _attached.get(module)


# id of a configuration -> (number of attachments, original implementation); several models may share one
_switched: dict[int, tuple[int, str]] = {}
_switching = threading.Lock()


def switch(model: Any, config: Any) -> None:
    """Switch the language backbone to the function of this module. Each call needs one `switch_back`."""
    with _switching:
        count, before = _switched.get(id(config), (0, attention_name(config)))
        _switched[id(config)] = (count + 1, before)
        if count == 0:
            model.set_attn_implementation({"text_config": NAME})


def switch_back(model: Any, config: Any) -> None:
    with _switching:
        count, before = _switched.pop(id(config))
        if count > 1:
            _switched[id(config)] = (count - 1, before)
        else:
            model.set_attn_implementation({"text_config": before})


def plain_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    if options.get("s_aux") is not None:  # sdpa would ignore them silently
        raise UnsupportedError(
            f"{type(module).__name__} has learned sinks: its attention is not a softmax over the keys alone"
        )
    if options.get("softcap") is not None:
        return _eager_attention(module, query, key, value, mask, **options)
    return sdpa_attention_forward(module, query, key, value, mask, **options)


def original_attention(
    name: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's own implementation, for a pass that another thread started before a method was attached.

    sdpa handles every 4D mask. Eager attention is not a registered function; sdpa computes the same.
    """
    function = ALL_ATTENTION_FUNCTIONS.get(name)
    if function is None or isinstance(mask, Tensor):
        return plain_attention(module, query, key, value, mask, **options)
    return function(module, query, key, value, mask, **options)


def _eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The eager attention of the module's model, for soft-capped scores, which sdpa does not support."""
    eager = eager_attention(module)
    if eager is None:
        raise UnsupportedError(f"{type(module).__name__} caps its scores, and no eager attention was found for it")
    causal = options.get("is_causal")
    if mask is None and query.shape[2] > 1 and (getattr(module, "is_causal", True) if causal is None else causal):
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = ones.tril(key.shape[2] - query.shape[2])
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, lowest)
    return eager(module, query, key, value, mask, **options)[0], None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    if options.get("cache") is not None:
        raise UnsupportedError(
            "continuous batching (generate_batch) takes token ids only and never sees the image: use generate()"
        )
    attachment = _attached.get(module)
    if attachment is None:
        return plain_attention(module, query, key, value, attention_mask, **options)
    return attachment.attend(module, query, key, value, attention_mask, **options)


AttentionInterface.register(NAME, _attention)
# without a mask function of the same name, the mask would arrive as None and padding would be attended
AttentionMaskInterface.register(NAME, sdpa_mask)
