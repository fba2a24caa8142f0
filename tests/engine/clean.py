"""Checks that an attachment leaves nothing in a model or a cache, and that refusals come before the decoder runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.cache_utils import Cache

from heal.engine import attention, caches
from heal.errors import HealError, UnsupportedError
from tests.engine.saying import forward


def footprint(model: hf.PreTrainedModel) -> tuple[Any, ...]:
    """Everything that an attachment could leave in a model."""
    hooks = {
        (name, key): len(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if "hooks" in key and isinstance(value, dict)
    }
    kinds = {name: m.config._attn_implementation for name, m in model.named_modules() if hasattr(m, "config")}
    claimed = [name for name, module in model.named_modules() if attention.attached_to(module) is not None]
    own = sorted(set(vars(model)) - {"_previous_max_cache_length"})  # the library's own note about static caches
    return hooks, kinds, claimed, own


@contextmanager
def left_clean(model: hf.PreTrainedModel, batch: dict[str, Tensor]) -> Iterator[None]:
    logits = forward(model, batch)  # the library puts hooks of its own into a model at its first pass
    before = footprint(model)
    assert before[2] == []
    yield
    assert footprint(model) == before
    assert "generate" not in vars(model)
    assert torch.equal(forward(model, batch), logits)


def own_methods(cache: Cache) -> set[str]:
    return set(vars(cache)) & {*caches.ROW_CHANGES, "crop"}


@contextmanager
def refused(model: hf.PreTrainedModel, match: str, error: type[HealError] = UnsupportedError) -> Iterator[None]:
    """The error says what to do, and the decoder has not run."""
    calls: list[int] = []
    counter = model.get_decoder().register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises(error, match=match):
            yield
    finally:
        counter.remove()
    assert calls == []
