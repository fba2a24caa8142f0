"""Calls of generate() that cannot work: refused before any token is made."""

from __future__ import annotations

import inspect
from typing import Any

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


def check_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Refuse what cannot work, and say how many rows one sample will have."""
    given = dict(zip(inspect.signature(type(model).generate).parameters, (model, *args), strict=False))
    given |= kwargs
    configs = (given.get("generation_config"), model.generation_config)

    def option(name: str) -> Any:
        """An argument, or what the given configuration says, or the model's own below it."""
        if name in given:
            return given[name]
        said = (getattr(config, name, None) for config in configs if config is not None)
        return next((value for value in said if value is not None), None)

    for name, reason in REFUSED.items():
        if option(name) not in (None, False):
            raise UnsupportedError(reason)
    if option("use_cache") is False:
        raise UnsupportedError("the method reads the key/value cache: leave use_cache=False out")
    return max(option("num_beams") or 1, option("num_return_sequences") or 1)


def refuse_batching(*args: Any, **kwargs: Any) -> None:
    raise UnsupportedError(
        "continuous batching (generate_batch) takes token ids only and never sees the image: use generate()"
    )
