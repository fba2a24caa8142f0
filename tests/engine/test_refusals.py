"""Unsupported calls are refused before anything is generated, and the message says what to do instead."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.cache_utils import Cache, Fp8QuantizedLayer

from heal.engine.calls import REFUSED
from heal.errors import ConfigError, HealError, ModelError, UnsupportedError
from heal.methods import HEAL
from tests import zoo
from tests.engine.clean import left_clean, refused
from tests.engine.saying import METHOD, NEW, ROWS, say

OPTIONS: dict[str, Any] = {
    "assistant_model": zoo.build("llava", seed=1),
    "prompt_lookup_num_tokens": 2,
    "custom_generate": lambda *args, **kwargs: None,
    "prefill_chunk_size": 4,
    "use_cache": False,
    "assistant_early_exit": 1,
    "use_mtp": True,
    "guidance_scale": 1.5,  # a second, unconditional pass with a cache of its own
}
IN_CONFIG = [name for name in OPTIONS if name in vars(hf.GenerationConfig())]


def test_every_refused_option_is_tried_here() -> None:
    assert set(REFUSED) <= set(OPTIONS)
    assert {"prompt_lookup_num_tokens", "prefill_chunk_size", "use_cache"} <= set(IN_CONFIG)


@pytest.mark.parametrize("name", OPTIONS)
def test_option_is_refused(model, batch, name: str) -> None:
    with left_clean(model, batch), METHOD.attach(model) as handle:
        with refused(model, r"leave .*out|use the ordinary generate\(\)"):
            say(model, batch, **{name: OPTIONS[name]})
        assert not handle.fired


@pytest.mark.parametrize("name", IN_CONFIG)
@pytest.mark.parametrize("where", ["keyword", "positional", "model", "model, below another"])
def test_option_in_a_configuration_is_refused(model, name: str, where: str) -> None:
    batch = zoo.inputs(model, ROWS[:1])
    ids, rest = batch["input_ids"], {k: v for k, v in batch.items() if k != "input_ids"}
    config = hf.GenerationConfig(max_new_tokens=NEW, pad_token_id=zoo.PAD)
    setattr(model.generation_config if where.startswith("model") else config, name, OPTIONS[name])
    with METHOD.attach(model), refused(model, "leave .*out"):
        if where == "positional":
            model.generate(ids, config, **rest)
        elif where == "model":
            model.generate(**batch, max_new_tokens=NEW)
        else:
            model.generate(**batch, generation_config=config)


@pytest.mark.parametrize("masking", ["swap", "gaussian"])
def test_swap_among_copies_is_refused(model, batch, masking: Any) -> None:
    method = HEAL(masking=masking, replacement="swap")
    with method.attach(model), refused(model, "use gaussian, zero or uniform", ConfigError):
        say(model, batch, num_beams=2)


def test_continuous_batching_is_refused(model, batch) -> None:
    ids = batch["input_ids"].tolist()
    with left_clean(model, batch), METHOD.attach(model):
        for call in (
            lambda: model.generate_batch(ids),
            lambda: model.init_continuous_batching(),
            lambda: model.continuous_batching_context_manager().__enter__(),
            lambda: model.generate(**batch, cache_implementation="paged"),
        ):
            with refused(model, r"use generate\(\)"):
                call()


class OwnQuantizedLayer(Fp8QuantizedLayer):
    pass


QUANTIZED: dict[str, Callable[[], dict[str, Any]]] = {
    "fp8": lambda: {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
    "fp8, layers made later": lambda: {"past_key_values": Cache(layer_class_to_replicate=Fp8QuantizedLayer)},
    "another": lambda: {"past_key_values": Cache(layers=[OwnQuantizedLayer() for _ in range(3)])},
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_cache_is_refused(model, batch, kind: str) -> None:
    with left_clean(model, batch), METHOD.attach(model), refused(model, "use the dynamic or the static cache"):
        say(model, batch, **QUANTIZED[kind]())


def tiny_t5() -> hf.PreTrainedModel:
    size = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    return hf.T5ForConditionalGeneration(hf.T5Config(**size))


def tiny_llama() -> hf.PreTrainedModel:
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=20, **size))


@pytest.mark.parametrize(
    ("make", "error", "advice"),
    [
        (tiny_t5, UnsupportedError, "Use a decoder-only model"),
        (tiny_llama, ModelError, "load it as an image-text-to-text model"),
        (lambda: torch.compile(zoo.build("llava")), ModelError, "attach to the model given to torch.compile"),
        (lambda: nn.Linear(2, 2), ModelError, "is not a transformers model"),
    ],
)
def test_model_is_refused(make: Callable[[], Any], error: type[HealError], advice: str) -> None:
    model = make()
    before = set(vars(model))
    with pytest.raises(error, match=advice), METHOD.attach(model):
        pytest.fail("attached")
    assert set(vars(model)) == before
