"""Law: generate, crop the cache, generate again = never cropped. For every method, on every architecture."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from heal import HEAL, Method
from heal.engine.caches import cut_back
from tests import zoo
from tests.known import known
from tests.laws.cases import CASES
from tests.laws.conftest import ROWS, WINDOW, inputs_of, model_of

TOKENS = 5
METHODS: dict[str, Method] = {
    "heal": HEAL(alpha=0.6, interval=2),
    "heal-zero": HEAL(alpha=0.6, interval=2, masking="zero", sinks="neutral"),
    **{name: case.active for name, case in CASES.items() if name not in ("beam", "guard")},
}


class Reader:
    """A model read token by token, with arguments prepared as generate() does."""

    def __init__(self, model: PreTrainedModel, batch: dict[str, Tensor], cache: Cache) -> None:
        self.model, self.cache = model, cache
        self.arguments: dict[str, Any] = {k: v for k, v in batch.items() if k != "input_ids"}
        self.arguments |= {"past_key_values": cache, "use_cache": True}
        self.ids = batch["input_ids"]
        positions = model._prepare_position_ids_for_generation(self.ids, dict(self.arguments, input_ids=self.ids))
        self.arguments["position_ids"] = positions
        if model._supports_mm_encoder_outputs():  # as generate() does it
            self.arguments = model._prepare_multimodal_encoder_kwargs_for_generation(self.arguments)
        cache.activate_past_recording()
        inputs = model.prepare_inputs_for_generation(self.ids, is_first_iteration=True, **self.arguments)
        self._after(model(**inputs, return_dict=True))

    def _after(self, outputs: Any) -> Tensor:
        self.arguments = self.model._update_model_kwargs_for_generation(outputs, self.arguments)
        return outputs.logits[:, -1].float()

    def read(self, tokens: Tensor) -> Tensor:
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)
        inputs = self.model.prepare_inputs_for_generation(self.ids, next_sequence_length=1, **self.arguments)
        return self._after(self.model(**inputs, return_dict=True))

    def crop(self, tokens: int) -> None:
        self.cache.crop(-tokens)
        self.cache.activate_past_recording()
        self.ids = self.ids[:, :-tokens]
        for name in ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids"):
            if name in self.arguments:
                self.arguments[name] = self.arguments[name][..., :-tokens]


def tokens_of(step: int, rows: int, salt: int = 0) -> Tensor:
    return torch.arange(rows) * 7 % 100 + 20 + 3 * step + salt


def assert_crop(name: str, method: Method, static: bool = False) -> None:
    model, batch = model_of(name), inputs_of(name, ROWS)
    config, longest = model.config.get_text_config(), batch["input_ids"].shape[1] + TOKENS + 4
    cache = StaticCache(config=config, max_cache_len=longest) if static else DynamicCache(config=config)
    with torch.no_grad(), method.attach(model, trace=True) as handle:
        reader = Reader(model, batch, cache)
        first = [reader.read(tokens_of(step, len(ROWS))) for step in range(TOKENS)]
        state = known(handle.attachment.latest).state
        told, records = [s.clone() for s in state.tally.steps], list(state.records)
        for taken in (1, 4):
            reader.crop(taken)
            for other in range(taken):  # a detour that must leave no trace
                reader.read(tokens_of(other, len(ROWS), salt=11))
            reader.crop(taken)
            again = [reader.read(tokens_of(step, len(ROWS))) for step in range(TOKENS - taken, TOKENS)]
            for one, other_logits in zip(first[-taken:], again, strict=True):
                scale = max(1.0, float(one[one.isfinite()].abs().max()))
                torch.testing.assert_close(other_logits, one, atol=1e-4 * scale, rtol=0)
        assert len(state.tally.steps) == len(told)
        for one, other_counts in zip(told, state.tally.steps, strict=True):
            torch.testing.assert_close(other_counts, one, atol=1e-3, rtol=1e-3)
        assert len(state.records) == len(records)
        for before, after in zip(records, state.records, strict=True):
            assert before.refreshed == after.refreshed
            assert torch.equal(before.values["types"], after.values["types"])


@pytest.mark.parametrize("name", [*zoo.NAMES, WINDOW])
@pytest.mark.parametrize("method", METHODS)
def test_cropped_and_read_again_is_never_cropped(name: str, method: str) -> None:
    assert_crop(name, METHODS[method])


@pytest.mark.parametrize("method", METHODS)
def test_a_static_cache_can_be_cropped_too(method: str) -> None:
    assert_crop("llava", METHODS[method], static=True)


def test_types_of_an_earlier_refresh_come_back() -> None:
    """A crop to before a refresh restores the types that acted there."""
    model, batch = model_of("llava"), inputs_of("llava", ROWS)
    with torch.no_grad(), HEAL(alpha=0.6, interval=2).attach(model) as handle:
        reader = Reader(model, batch, DynamicCache(config=model.config.get_text_config()))
        state, types = known(handle.attachment.latest).state, []
        for step in range(TOKENS):
            types.append(state.found)
            reader.read(tokens_of(step, len(ROWS)))
        assert len({found.step for found in types}) == 3
        reader.crop(TOKENS - 1)
        assert state.found.step == types[1].step == 0
        assert torch.equal(state.found.chosen, types[1].chosen)


def test_more_than_was_generated_cannot_be_cut() -> None:
    cache = StaticCache(config=model_of("llava").config.get_text_config(), max_cache_len=8)
    cut_back(cache, 0)
    assert int(cache.get_seq_length()) == 0
