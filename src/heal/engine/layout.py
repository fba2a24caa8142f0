"""The parts of a model: decoder layers, attention modules, o_proj, and the ids of visual tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from heal.engine.transformers_api import is_compiled_wrapper
from heal.errors import ModelError, UnsupportedError

VISUAL_TOKENS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
SPECIAL_TOKENS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_id",
    "eoi_token_id",
)


@dataclass(frozen=True)
class Layout:
    """The parts of a model that methods use, found in the same way for every supported architecture."""

    model: Any
    decoder: Any
    layers: tuple[nn.Module, ...]
    attention: tuple[Any, ...]
    heads: int
    visual_ids: frozenset[int]
    special_ids: frozenset[int]
    family: str
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, model: Any, special_ids: frozenset[int] = frozenset()) -> Layout:
        """`special_ids` are special tokens of the tokenizer that the configuration does not name."""
        if is_compiled_wrapper(model):
            raise ModelError("this is a compiled wrapper: attach to the model given to torch.compile instead")
        config = getattr(model, "config", None)
        if config is None or not hasattr(model, "get_decoder"):
            raise ModelError(f"{type(model).__name__} is not a transformers model that generates text")
        if getattr(config, "is_encoder_decoder", False):
            raise UnsupportedError(
                f"{type(model).__name__} is an encoder-decoder model: its image is read through cross-attention, "
                "so there are no visual positions to split. Use a decoder-only model such as LLaVA or Qwen-VL."
            )
        visual = _ids(config, VISUAL_TOKENS)
        if not visual:
            raise ModelError(
                f"{type(model).__name__} names no image token in its configuration (image_token_id): "
                "load it as an image-text-to-text model"
            )
        decoder = model.get_decoder()
        text = config.get_text_config()
        layers = tuple(getattr(decoder, "layers", ()))
        attention = tuple(m for layer in layers if (m := getattr(layer, "self_attn", None)) is not None)
        if not layers or len(attention) != len(layers) or not all(hasattr(m, "o_proj") for m in attention):
            raise ModelError(
                f"{type(model).__name__} has layers without softmax self-attention and o_proj; "
                "`heal list models` names the architectures that are known to work"
            )
        if any(getattr(module, "sinks", None) is not None for module in attention):
            raise UnsupportedError(
                f"the attention of {type(model).__name__} has learned sinks, so it is not a softmax over the "
                "keys alone: use a model without them"
            )
        kinds = tuple(getattr(text, "layer_types", None) or ("full_attention",) * len(layers))
        return cls(
            model=model,
            decoder=decoder,
            layers=layers,
            attention=attention,
            heads=text.num_attention_heads,
            visual_ids=visual,
            special_ids=_ids(config, SPECIAL_TOKENS)
            | _ids(text, SPECIAL_TOKENS)
            | _ids(getattr(model, "generation_config", None), SPECIAL_TOKENS)
            | special_ids,
            family=config.model_type,
            kinds=kinds[: len(layers)],
        )


def _ids(config: Any, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for name in names:
        value = getattr(config, name, None)
        found.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return frozenset(found)
