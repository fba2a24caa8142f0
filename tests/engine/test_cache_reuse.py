"""Caches across calls: further turns, reused static caches, and rows that are followed."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from heal.engine import caches
from heal.errors import HealWarning, UnsupportedError
from heal.methods import HEAL, Fired
from tests import zoo
from tests.engine.clean import left_clean, own_methods, refused
from tests.engine.saying import METHOD, NEW, ROWS, Said, forward, healed, say
from tests.known import known
from tests.zoo import Row


def test_cache_filled_outside_is_refused(model, batch) -> None:
    cache = DynamicCache(config=model.config.get_text_config())
    sequences = model.generate(**batch, max_new_tokens=2, past_key_values=cache)
    with left_clean(model, batch), METHOD.attach(model), refused(model, "start with an empty cache inside"):
        model.generate(sequences, past_key_values=cache, max_new_tokens=2)
    assert own_methods(cache) == set()


def test_layers_cropped_one_by_one_are_refused(model, batch) -> None:
    cache = DynamicCache(config=model.config.get_text_config())
    with METHOD.attach(model):
        sequences = model.generate(**batch, max_new_tokens=3, past_key_values=cache)
        for layer in cache.layers:
            layer.crop(-1)
        with refused(model, "filled without the method"):
            model.generate(sequences, past_key_values=cache, max_new_tokens=2)


def test_a_prompt_cannot_be_cropped(model, batch) -> None:
    cache = DynamicCache(config=model.config.get_text_config())
    with METHOD.attach(model):
        model.generate(**batch, max_new_tokens=3, past_key_values=cache)
        with pytest.raises(UnsupportedError, match="only 2 tokens were generated"):
            cache.crop(-3)


@dataclass(frozen=True)
class Talk:
    """Two turns with one cache: the output, and the groups of all cached positions."""

    turns: tuple[Said, Said]
    fired: tuple[Fired, ...]
    groups: Tensor | None


def talk(model: hf.PreTrainedModel, rows: list[Row], method: HEAL | None) -> Talk:
    batch = zoo.inputs(model, rows)
    cache, fired = DynamicCache(config=model.config.get_text_config()), []
    with ExitStack() as stack:
        handle = stack.enter_context(method.attach(model)) if method else None
        first = say(model, batch, past_key_values=cache)
        fired += [handle.fired] if handle else []
        reply = torch.tensor([[20, 21, 22]]).expand(len(rows), -1)
        ids = torch.cat([batch["input_ids"], first.tokens, reply], dim=1)
        longer = torch.ones(len(rows), NEW + 3, dtype=torch.long)
        mask = torch.cat([batch["attention_mask"], longer], dim=1)
        turn = {"input_ids": ids, "attention_mask": mask}
        second = say(model, turn, past_key_values=cache)
        fired += [handle.fired] if handle else []
        groups = known(handle.attachment.latest).groups if handle else None
    return Talk((first, second), tuple(fired), groups)


def test_second_turn_goes_on_with_the_cache(model) -> None:
    row = ROWS[:1]
    plain, with_method = talk(model, row, None), talk(model, row, METHOD)
    first, both = with_method.fired
    assert both.steps > first.steps > 0
    assert both.changes > first.changes > 0
    images = zoo.visual_mask(model, zoo.inputs(model, row)["input_ids"])
    length = images.shape[1] + NEW + 3 + NEW - 1
    expected = torch.nn.functional.pad(images, (0, length - images.shape[1]))
    assert torch.equal(known(with_method.groups) == 0, expected)
    assert with_method.turns[1] != plain.turns[1]


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS], ids=["alone", "padded"])
def test_second_turn_without_effect_is_the_plain_one(model, rows: list[Row]) -> None:
    plain = talk(model, rows, None)
    for idle in (HEAL(calibrate=False), HEAL(factor_limit=1.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HealWarning)
            found = talk(model, rows, idle)
        for mine, theirs in zip(found.turns, plain.turns, strict=True):
            assert torch.equal(mine.tokens, theirs.tokens)
            torch.testing.assert_close(mine.logits, theirs.logits, atol=2e-4, rtol=0)


def test_second_turn_has_no_sink_of_its_own(model) -> None:
    """The first position of the conversation is a sink. The first position of a later turn is an ordinary token."""
    found = talk(model, ROWS[:1], HEAL(sinks="neutral"))
    assert (known(found.groups)[0] == 2).nonzero().flatten().tolist() == [0]


def test_static_cache_used_again(model, batch) -> None:
    longest = batch["input_ids"].shape[1] + NEW
    cache = StaticCache(config=model.config.get_text_config(), max_cache_len=longest)
    expected = healed(model, batch)
    with METHOD.attach(model) as handle:
        first = say(model, batch, past_key_values=cache)
        heads = handle.fired.changes
        cache.reset()
        second = say(model, batch, past_key_values=cache)
        assert handle.fired.changes == 2 * heads > 0
    assert first == second
    assert torch.equal(first.tokens, expected.tokens)
    torch.testing.assert_close(first.logits, expected.logits, atol=1e-4, rtol=0)
    assert own_methods(cache) == set()


def test_compiled_model_does_not_notice(model, batch) -> None:
    compiled = torch.compile(model, backend="eager")
    text: dict[str, Any] = {"input_ids": torch.tensor([[1, 20, 30]]), "use_cache": False}
    before = forward(compiled, text)
    healed(model, batch)
    assert torch.equal(forward(compiled, text), before)
    torch.testing.assert_close(before, forward(model, text), atol=1e-5, rtol=0)


def test_embeddings_in_the_place_of_tokens(model) -> None:
    batch = zoo.inputs(model, ROWS[:1])
    embeds = model.get_input_embeddings()(batch["input_ids"]).detach()
    rest = {k: v for k, v in batch.items() if k != "input_ids"}
    with METHOD.attach(model) as handle:
        said = say(model, {"inputs_embeds": embeds, **rest})
        groups = known(handle.attachment.latest).groups[:, : embeds.shape[1]]
    assert torch.equal(groups == 0, zoo.visual_mask(model, batch["input_ids"]))
    assert said == healed(model, batch)


def filled(cache: Cache, rows: int) -> Cache:
    states = torch.arange(float(rows)).view(rows, 1, 1, 1).expand(rows, 1, 3, 2)
    for layer in range(2):
        cache.update(states, states, layer)
    return cache


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
        (lambda c: c.batch_select_indices(torch.tensor([1])), [1]),
        (lambda c: c.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
        (lambda c: c.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    ],
)
def test_rows_are_followed(change: Callable[[Cache], None], expected: list[int]) -> None:
    told: list[list[int]] = []
    cropped: list[int] = []
    cache = filled(DynamicCache(), 3)
    caches.follow(cache, told.append, cropped.append)
    assert own_methods(cache) == {*caches.ROW_CHANGES, "crop"}
    change(cache)
    cache.crop(-1)
    assert told == [expected]
    assert cache.layers[1].keys[:, 0, 0, 0].tolist() == expected
    caches.unfollow(cache)
    assert own_methods(cache) == set()
    cache.reorder_cache(torch.tensor([0]))
    cache.crop(-1)
    assert told == [expected]
    assert cropped == [1]
    assert cache.layers[0].keys.shape[0] == 1
