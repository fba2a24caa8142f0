"""With the prefix cache, a repeated prompt costs one position, and the results are equal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import PreTrainedModel
from transformers.cache_utils import StaticCache

from heal import Method
from heal.engine.prefix_cache import prefix_cache
from heal.methods import HEAL, VCD, Beam
from tests.laws.cases import CASES
from tests.laws.conftest import EVERY, ROWS, WINDOW, Run, footprint, generate, inputs_of, model_of, run
from tests.laws.heal_cases import MEASURE, NOISY

NEW = 3
METHODS: dict[str, Method | None] = {"plain": None, "heal": NOISY, "measure": MEASURE} | {
    name: case.active for name, case in CASES.items()
}
WHOLE = {"vhr", "memvr", "sid", "var"}
SLIDING = {WINDOW, "gemma3", "paligemma2"}

every_model = pytest.mark.parametrize("name", EVERY)


@contextmanager
def positions(model: PreTrainedModel) -> Iterator[list[int]]:
    """The number of positions in each pass of the first layer."""
    seen: list[int] = []

    def look(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        seen.append((args[0] if args else kwargs["hidden_states"]).shape[1])

    hook = model.get_decoder().layers[0].register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def assert_alike(out: Run, expected: Run) -> None:
    assert torch.equal(out.tokens, expected.tokens)
    assert_close(out.logits, expected.logits, atol=1e-5 * max(1.0, float(expected.logits.abs().max())), rtol=1e-4)
    assert [f.steps for f in out.rows] == [f.steps for f in expected.rows]
    for one, other in zip(out.rows, expected.rows, strict=True):
        assert one.sizes == pytest.approx(other.sizes, rel=1e-3, abs=1e-5)


@every_model
@pytest.mark.parametrize("method", METHODS)
def test_a_cached_prompt_gives_the_same_results(name: str, method: str) -> None:
    model, batch, chosen = model_of(name), inputs_of(name, ROWS), METHODS[method]
    expected, before = run(name, chosen, new=NEW), footprint(model)
    with prefix_cache(model):
        assert_alike(generate(model, batch, new=NEW), run(name, new=NEW))
        with positions(model) as seen:
            out = generate(model, batch, chosen, new=NEW, trace=False)
    assert_alike(out, expected)
    assert footprint(model) == before
    branch = method in {"vcd", "sid"}  # a branch with another prompt, or whose attention differs
    assert seen.count(batch["input_ids"].shape[1]) == (method in WHOLE or name in SLIDING) + branch


def test_a_trace_reads_the_whole_prompt_again() -> None:
    """It compares hidden states of the visual tokens, which the prefix cache does not hold."""
    model, batch = model_of("llava"), inputs_of("llava", ROWS)
    with prefix_cache(model):
        generate(model, batch, new=NEW)
        out = generate(model, batch, MEASURE, new=NEW)
    for record, expected in zip(out.records, run("llava", MEASURE, new=NEW).records, strict=True):
        assert_close(record.similarity, expected.similarity, atol=1e-5, rtol=0, equal_nan=True)
        assert record.similarity[0].isfinite().all()


@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_5_vl", "qwen3_vl", "internvl_qwen2"])
def test_beams_reuse_the_cache_of_one_row(name: str) -> None:
    options: dict[str, Any] = {"num_return_sequences": 2, "new": NEW}
    model, batch = model_of(name), inputs_of(name, ROWS)
    expected = run(name, Beam(3), **options)
    with prefix_cache(model):
        generate(model, batch, new=NEW)
        with positions(model) as seen:
            out = generate(model, batch, Beam(3), **options)
    assert_alike(out, expected)
    assert set(seen) == {1}


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_other_images_are_another_prompt(name: str) -> None:
    model, batch = model_of(name), inputs_of(name, ROWS)
    other = batch | {"pixel_values": batch["pixel_values"].flip(0)}
    expected = generate(model, other, NOISY, new=NEW)
    with prefix_cache(model):
        generate(model, batch, new=NEW)
        assert_alike(generate(model, other, NOISY, new=NEW), expected)
        assert_alike(generate(model, batch, NOISY, new=NEW), run(name, NOISY, new=NEW))


def test_other_words_are_another_prompt() -> None:
    model, batch = model_of("llava"), inputs_of("llava", ROWS)
    ids = batch["input_ids"].clone()
    ids[0, -2] += 1
    with prefix_cache(model):
        generate(model, batch, new=NEW)
        out = generate(model, batch | {"input_ids": ids}, new=NEW)
    assert_alike(out, generate(model, batch | {"input_ids": ids}, new=NEW))


def test_other_padding_is_another_prompt() -> None:
    """The same embeddings with fewer visible positions."""
    model, batch = model_of("llava"), inputs_of("llava", ROWS)
    mask = batch["attention_mask"].clone()
    mask[:, : mask.argmin(1).max() + 1 + mask.shape[1] // 3] = 0
    expected = generate(model, batch | {"attention_mask": mask}, new=NEW)
    with prefix_cache(model):
        generate(model, batch, new=NEW)
        assert_alike(generate(model, batch | {"attention_mask": mask}, new=NEW), expected)


def test_images_are_encoded_once() -> None:
    model, batch, calls = model_of("llava"), inputs_of("llava", ROWS), []
    hook = model.base_model.vision_tower.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        with prefix_cache(model):
            for method in (None, NOISY, Beam(3), HEAL(), VCD(alpha=0.5), VCD(alpha=1.5)):
                generate(model, batch, method, new=NEW)
    finally:
        hook.remove()
    assert len(calls) == 2  # unchanged, and with noise


def test_a_static_cache_is_filled_as_usual() -> None:
    model, batch = model_of("llava"), inputs_of("llava", ROWS)
    expected = run("llava", NOISY, new=NEW)
    with prefix_cache(model):
        generate(model, batch, new=NEW)
        size = batch["input_ids"].shape[1] + NEW
        cache = StaticCache(config=model.config.get_text_config(), max_cache_len=size)
        with positions(model) as seen:
            assert_alike(generate(model, batch, NOISY, new=NEW, past_key_values=cache), expected)
    assert batch["input_ids"].shape[1] in seen


def test_the_cache_is_dropped_at_the_end() -> None:
    model, batch = model_of("llava"), inputs_of("llava", ROWS)
    with prefix_cache(model):
        generate(model, batch, new=NEW)
    with prefix_cache(model), positions(model) as seen:
        generate(model, batch, new=NEW)
    assert seen[0] == batch["input_ids"].shape[1]
