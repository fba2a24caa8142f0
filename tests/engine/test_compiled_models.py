"""A compiled model does not call hooks, so a method refuses it before the first token."""

from collections.abc import Callable

import pytest
import torch
import transformers as hf

from heal import VLM
from heal.errors import HealError, UnsupportedError
from heal.methods import VCD
from tests.engine.clean import left_clean, refused
from tests.engine.saying import METHOD, healed, say
from tests.vlm.asking import ask

compiled = torch.compile(backend="eager")


def whole_forward(model: hf.PreTrainedModel) -> None:
    model.forward = compiled(model.forward)


def decoder_in_place(model: hf.PreTrainedModel) -> None:
    model.get_decoder().compile(backend="eager")


def a_layer_wrapped(model: hf.PreTrainedModel) -> None:
    layers = model.get_decoder().layers
    layers[1] = compiled(layers[1])


def an_attention_forward(model: hf.PreTrainedModel) -> None:
    attention = model.get_decoder().layers[0].self_attn
    attention.forward = compiled(attention.forward)


def model_in_place(model: hf.PreTrainedModel) -> None:
    model.compile(backend="eager")


WAYS = [whole_forward, decoder_in_place, a_layer_wrapped, an_attention_forward, model_in_place]


@pytest.mark.parametrize("compile_", WAYS, ids=lambda way: way.__name__)
def test_compiled_parts_are_refused(model, batch, compile_: Callable[[hf.PreTrainedModel], None]) -> None:
    compile_(model)
    with refused(model, "given to torch|compiled wrapper", HealError):
        healed(model, batch)


def test_what_is_compiled_later_is_refused_too(model, batch) -> None:
    with METHOD.attach(model):
        say(model, batch)
        own = model.forward
        whole_forward(model)
        with refused(model, "given to torch"):
            say(model, batch)
        model.forward = own


def test_a_compiled_vision_tower_is_no_obstacle(model, batch) -> None:
    expected = healed(model, batch, VCD(beta=0.0))
    tower = model.model.vision_tower
    tower.forward = compiled(tower.forward)
    found = healed(model, batch, VCD(beta=0.0))
    assert torch.equal(found.tokens, expected.tokens)
    assert (found.logits - expected.logits).abs().max() < 1e-4


def test_layers_that_do_not_come_by_are_noticed(model, batch) -> None:
    """If something else replaces the attention of a layer, there is an error instead of a partly plain answer."""
    attention = model.get_decoder().layers[1].self_attn
    with left_clean(model, batch), METHOD.attach(model):
        own = attention.forward
        attention.forward = lambda *args, **kwargs: (torch.zeros_like(kwargs["hidden_states"]), None)
        try:
            with pytest.raises(HealError, match="only 2 of 3 layers used the method's attention"):
                say(model, batch)
        finally:
            del attention.forward
        assert own.__func__ is type(attention).forward


@pytest.mark.parametrize("compile_", [whole_forward, model_in_place], ids=lambda way: way.__name__)
def test_the_plain_model_may_be_compiled(compile_: Callable[[hf.PreTrainedModel], None]) -> None:
    vlm = VLM.random()
    expected = ask(vlm)
    compile_(vlm.model)
    found = ask(vlm)
    assert found.token_ids == expected.token_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    with pytest.raises(UnsupportedError, match="given to torch"):
        ask(vlm, method=METHOD)
