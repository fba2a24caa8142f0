"""Position groups in HEAL: visual, language and neutral."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from heal import HEAL
from heal.analysis.counterfactual import Attended
from heal.engine.attention_call import AttentionCall
from heal.methods import heal_runtime
from heal.methods.heal_runtime import HealRuntime
from tests import zoo
from tests.laws.conftest import ROWS, WINDOW, generate, inputs_of, model_of, rows_of
from tests.laws.heal_cases import NEUTRAL_SINKS, NOISY, ZERO, assert_logits, at_equilibrium
from tests.zoo import Row


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Attended]:
    """The attention inputs of the first layer from now on."""
    seen: list[Attended] = []

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def watch(self: HealRuntime, generation: Any, call: Any, *rest: Any) -> Any:
            if isinstance(call, AttentionCall) and call.layer == 0:
                seen.append(call.newest)
            elif call == 0:
                seen.append(rest[0])
            return original(self, generation, call, *rest)

        return watch

    for name in ("_observe", "_attend"):
        monkeypatch.setattr(HealRuntime, name, watching(getattr(HealRuntime, name)))
    return seen


def sets_of(model: PreTrainedModel, ids: Tensor, present: Tensor) -> Tensor:
    """[rows, groups, positions], by the definition of the method."""
    visual = zoo.visual_mask(model, ids)
    first = (present.cumsum(1) == 1) & present.bool()
    neutral = (first | (ids == zoo.BOS) | (ids == zoo.PAD)) & ~visual
    return torch.stack([visual, ~visual & ~neutral, neutral], 1) & present.bool()[:, None]


def without_bos(name: str, rows: tuple[Row, ...]) -> dict[str, Tensor]:
    """The first token is not a special token: it is a sink only because of its position."""
    batch = inputs_of(name, rows)
    batch["input_ids"][batch["input_ids"] == zoo.BOS] = 7
    return batch


@pytest.mark.parametrize(
    ("name", "cache"),
    [*((name, "dynamic") for name in zoo.NAMES), ("llava", "static"), ("paligemma", "static"), ("gemma3", "static")],
)
def test_position_groups_follow_the_token_ids(name: str, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, model, batch = watched(monkeypatch), model_of(name), without_bos(name, rows_of(name)[-4:])
    ids, present = batch["input_ids"], batch["attention_mask"]
    out = generate(model, batch, NEUTRAL_SINKS, new=2, cache_implementation=cache)
    assert len(seen) == 3  # the prompt, its repeated last position, one token
    for at, new in zip(seen, (0, 0, 1), strict=True):
        full = torch.cat([ids, out.tokens[:, :new]], 1)
        there = torch.cat([present, torch.ones_like(out.tokens[:, :new])], 1)
        assert torch.equal(at.regions.masks, sets_of(model, full, there))


def two_turns(name: str, method: HEAL | None) -> Tensor:
    """The logits of the second answer in a conversation, after a prompt of four text tokens."""
    model, batch = model_of(name), without_bos(name, ROWS[:3])
    options = {"max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True}
    with nullcontext() if method is None else method.attach(model):
        first = model.generate(**batch, **options)
        ids = torch.cat([first.sequences, torch.arange(20, 24).expand(3, -1)], 1)
        turn = {"input_ids": ids, "past_key_values": first.past_key_values}
        for key, value in {"attention_mask": 1, "token_type_ids": 0, "mm_token_type_ids": 0}.items():
            if key in batch:
                longer = (0, ids.shape[1] - batch[key].shape[1])
                turn[key] = torch.nn.functional.pad(batch[key], longer, value=value)
        return torch.stack(model.generate(**turn, **options).logits, 1)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "paligemma", WINDOW])
@pytest.mark.filterwarnings("ignore::heal.errors.HealWarning")
def test_second_turn_of_a_conversation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_logits(two_turns(name, ZERO), two_turns(name, replace(ZERO, path="reference")))
    monkeypatch.setattr(heal_runtime, "joint_factors", at_equilibrium)
    assert_logits(two_turns(name, NOISY), two_turns(name, None))


def test_second_turn_has_no_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    two_turns("llava", NEUTRAL_SINKS)
    starts = without_bos("llava", ROWS[:3])["attention_mask"].argmax(1)
    neutral = seen[-1].regions.masks[:, 2]
    assert neutral.nonzero().tolist() == [[row, start] for row, start in enumerate(starts.tolist())]
