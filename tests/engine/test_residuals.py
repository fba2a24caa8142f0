"""How layers add their attention output to the residual stream: the detected rule equals the real computation."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from heal import HEAL
from heal.engine.residuals import residual_add
from heal.errors import UnsupportedError
from heal.methods import DoLa
from tests import zoo

HIDDEN = 64
PLAIN = ("Llama", "Qwen2", "Qwen3", "Mistral", "Phi3", "Starcoder2")
SCALED = ("Granite", "GraniteMoe", "MiniCPM3")
NORMED = ("Gemma2", "Gemma3Text", "Glm4", "Olmo2", "Exaone4")
PARALLEL = ("Cohere", "Cohere2", "Phi")


def tiny_decoder(family: str) -> Any:
    options: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family.startswith("Granite"):
        options |= {"residual_multiplier": 0.22}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = hf.AutoModel.from_config(getattr(hf, f"{family}Config")(**options)).eval()
        for weight in decoder.parameters():
            weight.data.add_(0.3 * torch.randn_like(weight))
    return decoder


def flow(layer: Any, decoder: Any) -> tuple[Tensor, Tensor, Tensor]:
    """From a real pass: the stream before attention, the output of o_proj, and the stream after the addition."""
    seen: dict[str, Any] = {"read": []}

    def enters(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        seen["before"] = args[0] if args else kwargs["hidden_states"]

    def projected(module: nn.Module, args: tuple, output: Tensor) -> None:
        seen["output"] = output

    def reads(module: nn.Module, args: tuple) -> None:
        if "output" in seen:
            seen["read"].append(args[0])

    hooks = [
        layer.register_forward_pre_hook(enters, with_kwargs=True),
        layer.self_attn.o_proj.register_forward_hook(projected),
        *(part.register_forward_pre_hook(reads) for part in layer.children() if part is not layer.self_attn),
    ]
    try:
        with torch.no_grad():
            decoder(input_ids=torch.tensor([[1, 5, 9, 13]]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    after = next(x for x in seen["read"] if not torch.equal(x, seen["output"]))
    return seen["before"], seen["output"], after


@pytest.mark.parametrize("family", PLAIN + SCALED + NORMED)
def test_what_is_added_is_what_flows(family: str) -> None:
    decoder = tiny_decoder(family)
    for layer in decoder.layers:
        found = residual_add(layer, layer.self_attn, HIDDEN)
        assert (found.norm is not None) == (family in NORMED)
        assert (found.multiplier != 1) == (family in SCALED)
        before, output, after = flow(layer, decoder)
        torch.testing.assert_close(before + found.added(output), after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["Granite", "Gemma2", "Starcoder2"])
def test_half_precision_gives_the_same_answer(family: str) -> None:
    layer = tiny_decoder(family).layers[0]
    whole = residual_add(layer, layer.self_attn, HIDDEN)
    layer.bfloat16()
    half = residual_add(layer, layer.self_attn, HIDDEN)
    assert half.multiplier == pytest.approx(whole.multiplier, rel=1e-6)
    assert half.norm is whole.norm


def test_a_changed_layer_is_asked_again() -> None:
    layer = tiny_decoder("Granite").layers[0]
    assert residual_add(layer, layer.self_attn, HIDDEN).multiplier == pytest.approx(0.22, rel=1e-6)
    layer.residual_multiplier = 0.5
    assert residual_add(layer, layer.self_attn, HIDDEN).multiplier == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("family", PARALLEL)
def test_parallel_blocks_are_refused(family: str) -> None:
    layer = tiny_decoder(family).layers[0]
    with pytest.raises(UnsupportedError, match="give replacement='none'"):
        residual_add(layer, layer.self_attn, HIDDEN)


def test_asking_leaves_the_layer_alone() -> None:
    layer = tiny_decoder("Gemma2").layers[0]
    before, hooks = dict(layer.named_modules()), [dict(m._forward_hooks) for m in layer.modules()]
    residual_add(layer, layer.self_attn, HIDDEN)
    assert dict(layer.named_modules()) == before
    assert [dict(m._forward_hooks) for m in layer.modules()] == hooks


# ── in a model ───────────────────────────────────────────────────────────────────────────────────────────


class _Doubling(hf.models.llama.modeling_llama.LlamaDecoderLayer):
    """Adds its attention output in an unknown way."""

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        out, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = 2 * hidden_states + out
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def test_heal_is_refused_before_the_first_token_and_works_without_the_stage() -> None:
    model = zoo.build("llava")
    batch = zoo.inputs(model, [zoo.Row()])
    for layer in model.get_decoder().layers:
        layer.__class__ = _Doubling
    with pytest.raises(UnsupportedError, match=r"_Doubling does not add.*replacement='none'"), HEAL().attach(model):
        pytest.fail("attached")
    for method in (HEAL(replacement="none"), DoLa(layers=(0, 1))):
        with method.attach(model) as handle:
            model.generate(**batch, max_new_tokens=2)
        assert handle.fired
