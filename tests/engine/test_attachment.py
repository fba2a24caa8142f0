"""Attaching: one method at a time, nothing left behind, clear refusals, caches and rows that are followed."""

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, Fp8QuantizedLayer, StaticCache

from heal.engine import attention, caches
from heal.engine.attachment import Attachment
from heal.engine.calls import REFUSED
from heal.errors import (
    AttachmentError,
    ConfigError,
    HealError,
    HealWarning,
    ModelError,
    UnsupportedError,
)
from heal.methods import HEAL, Fired
from tests import zoo
from tests.zoo import Row

NEW = 4
METHOD = HEAL(interval=2)
ROWS = [Row(), Row(text_before=6, text_after=4, salt=1)]


@dataclass(frozen=True)
class Said:
    """New tokens [rows, NEW] and their raw logits [rows, NEW, vocabulary]."""

    tokens: Tensor
    logits: Tensor

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Said)
        return torch.equal(self.tokens, other.tokens) and torch.equal(self.logits, other.logits)


@pytest.fixture
def model() -> hf.PreTrainedModel:
    return zoo.build("llava")


@pytest.fixture
def batch(model: hf.PreTrainedModel) -> dict[str, Tensor]:
    return zoo.inputs(model, ROWS)


def say(model: hf.PreTrainedModel, batch: dict[str, Tensor], **options: Any) -> Said:
    settings = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    out = model.generate(**batch, **(settings | options))
    return Said(out.sequences[:, -len(out.logits) :], torch.stack(out.logits, 1))


def healed(model: hf.PreTrainedModel, batch: dict[str, Tensor], method: HEAL = METHOD, **options: Any) -> Said:
    with method.attach(model) as handle:
        said = say(model, batch, **options)
    assert handle.fired
    return said


def forward(model: Any, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


def footprint(model: hf.PreTrainedModel) -> tuple[Any, ...]:
    """Whatever an attachment could leave in a model."""
    hooks = {
        (name, key): len(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if "hooks" in key and isinstance(value, dict)
    }
    kinds = {name: m.config._attn_implementation for name, m in model.named_modules() if hasattr(m, "config")}
    claimed = [name for name, module in model.named_modules() if attention.claimed(module)]
    own = sorted(set(vars(model)) - {"_previous_max_cache_length"})  # the library's own note about static caches
    return hooks, kinds, claimed, own


@contextmanager
def left_clean(model: hf.PreTrainedModel, batch: dict[str, Tensor]) -> Iterator[None]:
    logits = forward(model, batch)  # the library puts hooks of its own into a model at its first pass
    before = footprint(model)
    assert before[2] == []
    yield
    assert footprint(model) == before
    assert "generate" not in vars(model)
    assert torch.equal(forward(model, batch), logits)


def own_methods(cache: Cache) -> set[str]:
    return set(vars(cache)) & set(caches.ROW_CHANGES)


class At:
    """A logits processor that acts at one step of a generation, counted from 1."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.left, self.act = step, act

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            self.act()
        return scores


def fail() -> None:
    raise KeyError("on purpose")


# ── alone, and clean afterwards ───────────────────────────────────────────────────────────────────────


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
        assert own_methods(cache) == set(caches.ROW_CHANGES)
    assert own_methods(cache) == set()


def test_wrong_layers_leave_the_model_clean(model, batch) -> None:
    with (
        left_clean(model, batch),
        pytest.raises(ConfigError, match=r"layer 3, but the model has 3 \(0 to 2\)"),
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
    """Checkpoints with a generate of their own put it into the instance."""
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
    """Key/value caches are large: nothing may hold them until the garbage collector comes by."""
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


# ── two models, two threads ───────────────────────────────────────────────────────────────────────────


def test_two_models_in_one_thread(model, batch) -> None:
    other, settings = zoo.build("qwen2_vl"), HEAL(alpha=0.3, masking="zero")
    others = zoo.inputs(other, ROWS)
    expected = healed(model, batch), healed(other, others, settings)
    with left_clean(model, batch), left_clean(other, others), METHOD.attach(model), settings.attach(other):
        assert (say(model, batch), say(other, others)) == expected


def overlapping(one: hf.PreTrainedModel, two: hf.PreTrainedModel, batch: dict[str, Tensor]) -> Said:
    """What `two` says when the method leaves `one` first."""
    first, second = ExitStack(), ExitStack()
    with second:
        with first:
            first.enter_context(METHOD.attach(one))
            handle = second.enter_context(METHOD.attach(two))
        said = say(two, batch)
    assert handle.fired
    return said


def test_attachments_may_end_in_any_order(model, batch) -> None:
    other = zoo.build("llava", seed=1)
    expected = healed(other, batch)
    with left_clean(model, batch), left_clean(other, batch):
        assert overlapping(model, other, batch) == expected


def test_models_may_share_a_configuration(model, batch) -> None:
    other = type(model)(model.config).eval()
    other.load_state_dict(zoo.build("llava", seed=1).state_dict())
    other.generation_config = model.generation_config
    expected = healed(other, batch)
    with left_clean(model, batch), left_clean(other, batch):
        assert overlapping(model, other, batch) == expected


def test_two_threads_on_two_models(model) -> None:
    other = zoo.build("llava", seed=1)
    prompts = [zoo.inputs(model, [replace(row, salt=salt) for row in ROWS]) for salt in range(2)]
    expected = {m: [healed(m, prompt) for prompt in prompts] for m in (model, other)}
    found: dict[hf.PreTrainedModel, list[Said]] = {}
    together = threading.Barrier(2, timeout=60)

    def work(own: hf.PreTrainedModel) -> None:
        said = []
        with METHOD.attach(own):
            for prompt in prompts:
                together.wait()
                said.append(say(own, prompt))
        found[own] = said

    with left_clean(model, prompts[0]), left_clean(other, prompts[0]):
        threads = [threading.Thread(target=work, args=(m,)) for m in (model, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == expected


def test_two_threads_on_one_model_are_refused(model, batch) -> None:
    expected = healed(model, batch)
    busy, go_on, said = threading.Event(), threading.Event(), []

    def wait() -> None:
        busy.set()
        assert go_on.wait(60)

    with METHOD.attach(model):
        slow = threading.Thread(target=lambda: said.append(say(model, batch, logits_processor=[At(2, wait)])))
        slow.start()
        assert busy.wait(60)
        with pytest.raises(AttachmentError, match="give each thread its own model"):
            say(model, batch)
        go_on.set()
        slow.join(60)
        assert said == [expected]
        assert say(model, batch) == expected


# ── what is refused, before anything is generated ─────────────────────────────────────────────────────


@contextmanager
def refused(model: hf.PreTrainedModel, match: str, error: type[HealError] = UnsupportedError) -> Iterator[None]:
    """The error says what to do, and the decoder has not run."""
    calls: list[int] = []
    counter = model.get_decoder().register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises(error, match=match):
            yield
    finally:
        counter.remove()
    assert calls == []


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
def test_swap_among_copies_is_refused(model, batch, masking: str) -> None:
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


# ── caches from call to call ──────────────────────────────────────────────────────────────────────────


def test_cache_filled_outside_is_refused(model, batch) -> None:
    cache = DynamicCache(config=model.config.get_text_config())
    sequences = model.generate(**batch, max_new_tokens=2, past_key_values=cache)
    with left_clean(model, batch), METHOD.attach(model), refused(model, "start with an empty cache inside"):
        model.generate(sequences, past_key_values=cache, max_new_tokens=2)
    assert own_methods(cache) == set()


def test_cache_cropped_outside_is_refused(model, batch) -> None:
    cache = DynamicCache(config=model.config.get_text_config())
    with METHOD.attach(model):
        sequences = model.generate(**batch, max_new_tokens=3, past_key_values=cache)
        cache.crop(-1)
        with refused(model, "filled or cropped outside"):
            model.generate(sequences, past_key_values=cache, max_new_tokens=2)


@dataclass(frozen=True)
class Talk:
    """Two turns over one cache: what was said, and the owners of all cached positions."""

    turns: tuple[Said, Said]
    fired: tuple[Fired, ...]
    owners: Tensor | None


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
        owners = handle.attachment.latest._owners if handle else None
    return Talk((first, second), tuple(fired), owners)


def test_second_turn_goes_on_with_the_cache(model) -> None:
    row = ROWS[:1]
    plain, with_method = talk(model, row, None), talk(model, row, METHOD)
    first, both = with_method.fired
    assert both.steps > first.steps > 0
    assert both.changes > first.changes > 0
    images = zoo.visual_mask(model, zoo.inputs(model, row)["input_ids"])
    length = images.shape[1] + NEW + 3 + NEW - 1
    expected = torch.nn.functional.pad(images, (0, length - images.shape[1]))
    assert torch.equal(with_method.owners == 0, expected)
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
    """The first position of the conversation is a sink; the first of a later turn is a word like others."""
    found = talk(model, ROWS[:1], HEAL(sinks="neutral"))
    assert (found.owners[0] == 2).nonzero().flatten().tolist() == [0]


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
    text = {"input_ids": torch.tensor([[1, 20, 30]]), "use_cache": False}
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
        owners = handle.attachment.latest._owners[:, : embeds.shape[1]]
    assert torch.equal(owners == 0, zoo.visual_mask(model, batch["input_ids"]))
    assert said == healed(model, batch)


def filled(cache: Cache, rows: int) -> Cache:
    states = torch.arange(float(rows)).view(rows, 1, 1, 1).expand(rows, 1, 2, 2)
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
    cache, told = filled(DynamicCache(), 3), []
    caches.follow(cache, told.append)
    assert own_methods(cache) == set(caches.ROW_CHANGES)
    change(cache)
    assert told == [expected]
    assert cache.layers[1].keys[:, 0, 0, 0].tolist() == expected
    caches.unfollow(cache)
    assert own_methods(cache) == set()
    cache.reorder_cache(torch.tensor([0]))
    assert told == [expected]
    assert cache.layers[0].keys.shape[0] == 1


# ── proof of effect ───────────────────────────────────────────────────────────────────────────────────


def test_fired_adds_up() -> None:
    steps = [torch.tensor([2.0, 0.5, 1.0]), torch.tensor([0.0, 0.0, 0.0]), torch.tensor([3.0, 2.0, 0.25])]
    names = ("beta", "gamma")
    assert Fired.of(names, steps, "never shown") == Fired(2, 5, {"beta": 0.5, "gamma": 0.25})
    assert Fired.of(names, steps[1:2], "why") == Fired(reason="why")
    assert Fired.of(names, [], "why") == Fired(reason="why")
    assert Fired(changes=1)
    assert not Fired(steps=1, reason="why")


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        (METHOD, ROWS),
        (HEAL(alpha=0.9, factor_limit=None), ROWS),
        (HEAL(layers=(1,)), ROWS),
        (HEAL(factor_limit=1.0), ROWS),
        (HEAL(calibrate=False), ROWS),
        (METHOD, [Row(images=0)]),
    ],
    ids=["default", "strong", "one layer", "limit 1", "measure", "no image"],
)
@pytest.mark.filterwarnings("ignore::heal.errors.HealWarning")
def test_fired_says_whether_anything_changed(model, method: HEAL, rows: list[Row]) -> None:
    batch = zoo.inputs(model, rows)
    with method.attach(model) as handle:
        said = say(model, batch, max_new_tokens=1)
    change = (said.logits - say(model, batch, max_new_tokens=1).logits).abs().max()
    assert (handle.fired.changes > 0) == bool(change > 1e-3)
    assert bool(handle.fired) == (handle.fired.steps == 1)
    assert (handle.fired.reason is None) == (handle.fired.changes > 0)
    assert change > 1e-3 or change < 1e-4


def test_fired_over_generations_is_their_sum(model, batch) -> None:
    with METHOD.attach(model) as one:
        say(model, batch)
    with METHOD.attach(model) as two:
        say(model, batch)
        say(model, batch)
    assert one.fired.changes > 0
    assert (two.fired.steps, two.fired.changes) == (2 * one.fired.steps, 2 * one.fired.changes)
    assert two.fired.sizes["beta"] == pytest.approx(one.fired.sizes["beta"])
    assert two.fired.sizes["gamma"] == pytest.approx(one.fired.sizes["gamma"])


def test_measuring_is_no_failure(model, batch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealWarning)
        with HEAL(calibrate=False).attach(model) as handle:
            say(model, batch)
    assert not handle.fired
    assert "nothing was generated" not in handle.fired.reason


@pytest.mark.parametrize(
    ("method", "row", "reason"),
    [
        (METHOD, Row(images=0), "the prompt has no visual tokens"),
        (HEAL(factor_limit=1.0), Row(), "every synergy head was at the equilibrium"),
    ],
)
def test_silence_is_said_once_an_attachment(model, method: HEAL, row: Row, reason: str) -> None:
    batch = zoo.inputs(model, [row])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            with method.attach(model) as handle:
                say(model, batch)
                say(model, batch)
            assert handle.fired.reason.startswith(reason)
    messages = [str(w.message) for w in heard if issubclass(w.category, HealWarning)]
    assert len(messages) == 2
    assert all(m.startswith(f"nothing was changed: {reason}") for m in messages)


def test_no_warning_when_something_was_calibrated(model, batch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealWarning)
        healed(model, batch)
