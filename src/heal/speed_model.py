"""The random models of `heal speed`, with the decoder dimensions of real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from heal.random_llava import build_llava


@dataclass(frozen=True)
class Shape:
    """The dimensions that decide the time of a decoding step."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    positions: int
    visual: int


PRESETS = {
    "llava-1.5-7b": Shape(4096, 11008, 32, 32, 640, 576),
    "qwen2.5-vl-7b": Shape(3584, 18944, 28, 4, 1500, 1200),
}


def random_model(shape: Shape, layers: int, dtype: torch.dtype, seed: int = 0) -> Any:
    """A LLaVA with these decoder dimensions, random weights, a minimal vision tower and a tiny vocabulary.

    The vocabulary is small because with few layers a real output layer would hide the cost of the method.
    """
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 28,
        "patch_size": 14,
    }
    text = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "vocab_size": 128,
        "max_position_embeddings": 8192,
    }
    with _default_dtype(dtype):
        model = build_llava(vision, text, seed, image_token_id=3)
    model.generation_config.eos_token_id = None
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def shape_of(model: Any) -> Shape:
    """The decoder dimensions of a checkpoint, with the prompt length of LLaVA-1.5."""
    text = model.config.get_text_config()
    return Shape(
        text.hidden_size,
        text.intermediate_size,
        text.num_attention_heads,
        text.num_key_value_heads,
        positions=640,
        visual=576,
    )
