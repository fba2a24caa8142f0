"""Attention other than a softmax over the keys: computed like the model does, or refused before the first token."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heal import HEAL
from heal.errors import UnsupportedError
from heal.methods import PAI, DoLa
from tests import zoo

OTHER = DoLa(layers=(0, 1))  # looks at no attention at all


@pytest.mark.parametrize("method", [HEAL(), OTHER])
def test_learned_sinks_are_refused_when_a_method_is_attached(method: Any) -> None:
    """sdpa would ignore them silently, so no method may be attached."""
    model = zoo.build("llava")
    model.get_decoder().layers[2].self_attn.sinks = nn.Parameter(torch.zeros(8))
    with pytest.raises(UnsupportedError, match="learned sinks"), method.attach(model):
        pytest.fail("attached")


class Tokens:
    """A streamer that counts its tokens."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def put(self, value: Tensor) -> None:
        self.given.append(value)

    def end(self) -> None:
        pytest.fail("the answer came to its end")


@pytest.mark.parametrize(
    ("option", "method"),
    [("s_aux", HEAL()), ("s_aux", OTHER), ("position_bias", HEAL(layers=(2,))), ("position_bias", PAI())],
)
def test_what_attention_is_given_is_refused_before_the_first_token(option: str, method: Any) -> None:
    model = zoo.build("llava")
    bias = torch.zeros(8) if option == "s_aux" else torch.zeros(1, 8, 1, 1)

    def give(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
        return args, kwargs | {option: bias}

    for layer in model.get_decoder().layers:
        layer.self_attn.register_forward_pre_hook(give, with_kwargs=True)
    streamer = Tokens()
    with method.attach(model), pytest.raises(UnsupportedError, match="softmax over the keys alone"):
        model.generate(**zoo.inputs(model, [zoo.Row()]), max_new_tokens=3, streamer=streamer)
    assert len(streamer.given) == 1  # the prompt


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_soft_capped_attention_is_that_of_the_model_itself(dtype: torch.dtype) -> None:
    model = zoo.build("paligemma2").to(dtype)
    assert model.config.get_text_config()._attn_implementation == "eager"
    rows = [zoo.Row(), zoo.Row(text_before=6, text_after=9, salt=1)]
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in zoo.inputs(model, rows).items()}
    options = {"max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True}
    plain = torch.stack(model.generate(**batch, **options).logits)
    with HEAL(calibrate=False).attach(model):
        measured = torch.stack(model.generate(**batch, **options).logits)
    assert torch.equal(measured, plain)
    with HEAL(alpha=0.9).attach(model) as handle:
        calibrated = torch.stack(model.generate(**batch, **options).logits)
    assert handle.fired
    assert not torch.equal(calibrated, plain)
