"""Reject unsupported calls of generate() before the first token is generated."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from heal.engine.layout import Layout
from heal.engine.transformers_api import is_compiled
from heal.errors import UnsupportedError

REFUSED = {
    "assistant_model": "assisted decoding verifies several tokens at once: leave assistant_model out",
    "prompt_lookup_num_tokens": "prompt-lookup decoding verifies several tokens at once: leave it out",
    "assistant_early_exit": "self-speculative decoding verifies several tokens at once: leave it out",
    "use_mtp": "multi-token prediction verifies several tokens at once: leave use_mtp out",
    "custom_generate": "a custom generation loop may bypass the cache: use the ordinary generate()",
    "guidance_scale": "guidance runs a second, unconditional generation: leave guidance_scale out",
    "prefill_chunk_size": "a prompt read in chunks has no single last position: leave prefill_chunk_size out",
}


@dataclass(frozen=True)
class Call:
    """The arguments of a call of generate()."""

    beams: int
    copies: int
    """Number of rows per sample."""
    samples: int
    """Number of prompts in the batch."""
    every_step: bool = False
    """Whether the caller sees or needs each step's result at once: a stream, or sampling, which fails for NaN."""
    prompt_length: int = 0
    """Positions of the prompt in the returned sequences."""
    end_tokens: frozenset[int] = frozenset()
    pad_token: int = 0
    returns_dict: bool = False


def check_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Refuse unsupported options and inputs."""
    given = dict(zip(inspect.signature(type(model).generate).parameters, (model, *args), strict=False))
    given |= kwargs
    configs = (given.get("generation_config"), model.generation_config)

    def option(name: str) -> Any:
        """An argument of generate(), or its value in the given or the model's generation config."""
        if name in given:
            return given[name]
        said = (getattr(config, name, None) for config in configs if config is not None)
        return next((value for value in said if value is not None), None)

    for name, reason in REFUSED.items():
        if option(name) not in (None, False):
            raise UnsupportedError(reason)
    if option("use_cache") not in (None, True):
        raise UnsupportedError("the method reads the key/value cache: leave use_cache=False out")
    beams, returned = option("num_beams") or 1, option("num_return_sequences") or 1
    prompts = next((v for n in ("input_ids", "inputs", "inputs_embeds") if (v := given.get(n)) is not None), None)
    every_step = given.get("streamer") is not None or bool(option("do_sample"))
    ids = given.get("input_ids", given.get("inputs"))
    return Call(
        beams,
        max(beams, returned),
        1 if prompts is None else len(prompts),
        every_step,
        0 if ids is None else ids.shape[1],
        token_ids(option("eos_token_id")),
        min(token_ids(option("pad_token_id")) or token_ids(option("eos_token_id")) or {0}),
        bool(option("return_dict_in_generate")),
    )


def token_ids(given: Any) -> frozenset[int]:
    """An option that is None, one token or several."""
    if given is None:
        return frozenset()
    return frozenset(map(int, torch.as_tensor(given).flatten().tolist()))


COMPILED = "a compiled model does not call the method's hooks, so it would be the plain model: "


def refuse_compiled(layout: Layout) -> None:
    """Refuse a compiled model or decoder part. A compiled vision tower is allowed."""
    if torch.compiler.is_compiling():
        raise UnsupportedError(COMPILED + "call generate() outside of torch.compile")
    parts = [("model", layout.model), ("base model", layout.model.base_model)]
    for name, module in (*parts, *layout.decoder.named_modules(prefix="decoder")):
        if is_compiled(module):
            raise UnsupportedError(
                COMPILED + f"the {name} ({type(module).__name__}) was given to torch.compile. Attach to a model that "
                "was not"
            )


def refuse_batching(*args: Any, **kwargs: Any) -> None:
    raise UnsupportedError(
        "continuous batching (generate_batch) takes token ids only and never sees the image: use generate()"
    )
