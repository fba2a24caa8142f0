"""NaN is reported before an answer is returned, without a look at every step."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, TextStreamer

from heal.engine.finite import FiniteCheck
from heal.errors import NonFiniteError
from heal.methods import HEAL
from tests import zoo

METHOD = HEAL(alpha=0.3, interval=100)
BAD = 5


class Breaks:
    """Makes the decoder's output NaN at one step, and counts the passes."""

    def __init__(self, model, step: int) -> None:
        self.passes, self.step = -1, step
        # the repeated prompt position is a pass of the decoder only
        self.hook = model.register_forward_pre_hook(self._count)
        self.norm = model.get_decoder().norm.register_forward_hook(self._break)

    def _count(self, *_: object) -> None:
        self.passes += 1

    def _break(self, module: object, args: object, output: Tensor) -> Tensor | None:
        return output * torch.nan if self.passes == self.step else None


@pytest.fixture
def batch(model):
    return zoo.inputs(model, [zoo.Row()])


@pytest.mark.parametrize(("options", "passes"), [({}, 11), ({"num_beams": 2}, None), ({"do_sample": True}, BAD)])
def test_the_step_is_named_and_no_answer_returned(model, batch, options, passes: int | None) -> None:
    broken = Breaks(model, BAD)
    with METHOD.attach(model), pytest.raises(NonFiniteError, match=f"not finite at step {BAD}: load it in bfloat16"):
        model.generate(**batch, max_new_tokens=12, **options)
    assert passes in (None, broken.passes)


def test_a_long_answer_ends_early(model, batch) -> None:
    broken = Breaks(model, BAD)
    with METHOD.attach(model), pytest.raises(NonFiniteError, match=f"at step {BAD}"):
        model.generate(**batch, max_new_tokens=100)
    assert broken.passes == FiniteCheck.PENDING


def test_a_prompt_is_checked_at_once(model, batch) -> None:
    broken = Breaks(model, 0)
    with METHOD.attach(model), pytest.raises(NonFiniteError, match="at step 0"):
        model.generate(**batch, max_new_tokens=12)
    assert broken.passes == 0


def test_a_stream_ends_before_the_wrong_token(model, batch) -> None:
    seen: list[Tensor] = []

    class Seen(TextStreamer):
        def __init__(self) -> None:
            pass

        def put(self, value: Tensor) -> None:
            seen.append(value)

        def end(self) -> None:
            pass

    Breaks(model, BAD)
    with METHOD.attach(model), pytest.raises(NonFiniteError, match=f"at step {BAD}"):
        model.generate(**batch, max_new_tokens=12, streamer=Seen())
    assert len(seen) == 1 + BAD  # the prompt and the tokens before


def test_a_forward_pass_is_checked_at_once(model, batch) -> None:
    Breaks(model, 1)
    with METHOD.attach(model), torch.no_grad():
        cache = DynamicCache(config=model.config.get_text_config())
        model(**batch, past_key_values=cache)
        with pytest.raises(NonFiniteError, match="at step 1"):
            model(input_ids=torch.tensor([[7]]), past_key_values=cache)


def test_nan_is_the_cause_of_later_errors(model, batch) -> None:
    broken = Breaks(model, BAD)

    def fail(ids: Tensor, scores: Tensor) -> Tensor:
        if broken.passes > BAD:
            raise ValueError("nothing is left")
        return scores

    with METHOD.attach(model), pytest.raises(NonFiniteError, match=f"at step {BAD}"):
        model.generate(**batch, max_new_tokens=12, logits_processor=[fail])


def test_the_next_call_starts_anew(model, batch) -> None:
    broken = Breaks(model, BAD)
    with METHOD.attach(model):
        with pytest.raises(NonFiniteError):
            model.generate(**batch, max_new_tokens=12)
        broken.norm.remove()
        model.generate(**batch, max_new_tokens=12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_bad_value_is_found(bad: float, dtype: torch.dtype) -> None:
    largest = torch.full((2, 1000), torch.finfo(torch.float16).max, dtype=dtype)
    check = FiniteCheck()
    check.add(3, largest)  # its sum is no number of half precision
    check.check()
    broken = largest.clone()
    broken[1, 7] = bad
    check.add(4, largest)
    check.add(5, broken)
    check.add(6, broken)
    with pytest.raises(NonFiniteError, match="at step 5:"):
        check.check()
    check.check()
