"""Attaching: one method at a time, and nothing remains afterwards."""

import copy
import gc
import weakref

import pytest
import torch
from transformers.cache_utils import DynamicCache

from heal.engine import attention, caches
from heal.engine.attachment import Attachment
from heal.errors import AttachmentError, ConfigError, ModelError
from heal.methods import HEAL, Fired
from tests.engine.clean import left_clean, own_methods
from tests.engine.saying import METHOD, At, forward, healed, say


def fail() -> None:
    raise KeyError("on purpose")


def test_second_method_is_refused_and_the_first_goes_on(model, batch) -> None:
    expected = healed(model, batch)
    with left_clean(model, batch):
        with METHOD.attach(model) as outer:
            with pytest.raises(AttachmentError, match="leave its `with` block"), HEAL(alpha=0.3).attach(model):
                pytest.fail("the second method was attached")
            assert say(model, batch) == expected
        assert outer.fired.changes > 0


def test_exception_in_the_block_leaves_the_model_clean(model, batch) -> None:
    with left_clean(model, batch), pytest.raises(KeyError, match="on purpose"), METHOD.attach(model):
        fail()


def test_exception_in_generate_leaves_the_model_clean(model, batch) -> None:
    cache = DynamicCache(config=model.config.get_text_config())
    with left_clean(model, batch), pytest.raises(KeyError, match="on purpose"), METHOD.attach(model):
        say(model, batch, logits_processor=[At(2, fail)], past_key_values=cache)
    assert own_methods(cache) == set()
    assert cache.get_seq_length() == batch["input_ids"].shape[1] + 1


def test_generation_after_a_failed_one_is_as_if_it_had_not_been(model, batch) -> None:
    expected = healed(model, batch)
    with METHOD.attach(model):
        with pytest.raises(KeyError, match="on purpose"):
            say(model, batch, logits_processor=[At(2, fail)])
        assert say(model, batch) == expected


def test_cache_is_patched_inside_and_not_outside(model, batch) -> None:
    cache = DynamicCache(config=model.config.get_text_config())
    with METHOD.attach(model):
        say(model, batch, past_key_values=cache)
        assert own_methods(cache) == {*caches.ROW_CHANGES, "crop"}
    assert own_methods(cache) == set()


def test_wrong_layers_leave_the_model_clean(model, batch) -> None:
    with (
        left_clean(model, batch),
        pytest.raises(ConfigError, match=r"layer 3, but the model has 3 layers \(0 to 2\)"),
        HEAL(layers=(0, 3)).attach(model),
    ):
        pytest.fail("layer 3 was found")


@pytest.mark.parametrize("stage", ["_hook", "_guard_generate"])
def test_failure_while_attaching_leaves_the_model_clean(model, batch, monkeypatch, stage: str) -> None:
    original = getattr(Attachment, stage)

    def break_after(self: Attachment) -> None:
        original(self)
        fail()

    monkeypatch.setattr(Attachment, stage, break_after)
    with left_clean(model, batch), pytest.raises(KeyError, match="on purpose"), METHOD.attach(model):
        pytest.fail("attached")


def test_model_that_keeps_its_attention_is_refused(model, batch, monkeypatch) -> None:
    with left_clean(model, batch), monkeypatch.context() as patch:
        patch.setattr(model, "set_attn_implementation", lambda _: None)
        with pytest.raises(ModelError, match="attention interface"), METHOD.attach(model):
            pytest.fail("attached")


def test_layers_with_different_attention_are_refused(model, batch) -> None:
    module = model.get_decoder().layers[1].self_attn
    module.config = copy.deepcopy(module.config)
    module.config._attn_implementation_internal = "eager"
    several = pytest.raises(ModelError, match="several attention implementations")
    with left_clean(model, batch), several, METHOD.attach(model):
        pytest.fail("attached")


def test_attention_implementation_comes_back(model, batch) -> None:
    model.set_attn_implementation("eager")
    with left_clean(model, batch):
        with METHOD.attach(model):
            assert model.config.text_config._attn_implementation == attention.NAME
            assert model.config.vision_config._attn_implementation == "eager"
        assert model.config.text_config._attn_implementation == "eager"


def test_generate_that_belonged_to_the_instance_comes_back(model, batch) -> None:
    """Some checkpoints set their own generate on the instance."""
    own = model.generate = lambda *args, **kwargs: "own"
    with METHOD.attach(model):
        pass
    assert model.generate is own


def test_three_times_the_same(model, batch) -> None:
    with left_clean(model, batch):
        first, second, third = (healed(model, batch) for _ in range(3))
    assert first == second == third
    assert first != say(model, batch)


def test_forward_without_a_cache_stays_plain(model, batch) -> None:
    logits = forward(model, batch | {"use_cache": False})
    with METHOD.attach(model) as handle:
        inside = forward(model, batch | {"use_cache": False})
    torch.testing.assert_close(inside, logits, atol=1e-5, rtol=0)
    assert handle.fired == Fired(reason="nothing was generated")


def test_cache_dies_with_the_generation(model, batch) -> None:
    """KV caches are large, so no reference may keep them until garbage collection."""
    gc.collect()
    gc.disable()
    try:
        with METHOD.attach(model):
            cache = DynamicCache(config=model.config.get_text_config())
            known = weakref.ref(cache)
            say(model, batch, past_key_values=cache)
            del cache
            assert known() is None
    finally:
        gc.enable()
