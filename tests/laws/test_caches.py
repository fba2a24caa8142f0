"""HEAL with static and dynamic caches, windows and half precision."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from heal.errors import UnsupportedError
from tests import zoo
from tests.laws.conftest import NEW, ROWS, WINDOW, generate, inputs_of, model_of, run
from tests.laws.heal_cases import (
    BEAMS,
    MEASURE,
    MIXED,
    NOISY,
    SEES,
    ZERO,
    assert_fired,
    assert_logits,
    assert_plain,
    moved,
)
from tests.zoo import Row

# a static cache refuses prompts beyond a window; transformers' PaliGemma has no mask for one with windows (Gemma 2)
every_static = pytest.mark.parametrize("name", [name for name in zoo.NAMES if name != "paligemma2"])


@every_static
def test_static_cache_equals_dynamic_cache(name: str) -> None:
    assert_static(name, ROWS)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3"])
def test_static_cache_equals_dynamic_cache_with_beams(name: str) -> None:
    assert_static(name, MIXED, **BEAMS)


def assert_static(name: str, rows: tuple[Row, ...], **options: Any) -> None:
    dynamic = run(name, NOISY, rows, **options)
    static = generate(model_of(name), inputs_of(name, rows), NOISY, cache_implementation="static", **options)
    assert torch.equal(static.tokens, dynamic.tokens)
    assert_logits(static.logits, dynamic.logits)
    assert_fired(static, dynamic, slice(None))


@pytest.mark.parametrize("name", ["llava", "gemma3"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generations_in_one_context_are_independent(name: str, cache: str) -> None:
    model, expected = model_of(name), run(name, NOISY)
    with NOISY.attach(model) as handle:
        for rows in (ROWS[:1], ROWS):
            out = model.generate(
                **inputs_of(name, rows),
                max_new_tokens=NEW,
                output_logits=True,
                return_dict_in_generate=True,
                cache_implementation=cache,
            )
            assert_logits(torch.stack(out.logits, 1), expected.logits[: len(rows)])
        assert handle.fired.steps == 2 * NEW


def test_static_cache_refuses_a_prompt_beyond_its_window() -> None:
    model, passes = model_of(WINDOW), []
    hook = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    try:
        with pytest.raises(UnsupportedError, match="use the dynamic cache"):
            generate(model, inputs_of(WINDOW, ROWS), NOISY, cache_implementation="static")
    finally:
        hook.remove()
    assert not passes
    plain, out = (run(WINDOW, method, cache_implementation="static") for method in (None, MEASURE))
    assert torch.equal(out.logits, plain.logits)


@pytest.mark.parametrize("window", [17, 19])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_windows_that_fill_up_at_the_first_tokens(window: int, cache: str) -> None:
    """The prompt fills the smaller window; the other one is full two tokens later."""
    model = zoo.build("gemma3", sliding_window=window)
    batch = zoo.inputs(model, [Row(), Row(text_before=1, salt=1)])
    assert batch["input_ids"].shape[1] == 17
    fast, reference = (
        generate(model, batch, replace(ZERO, path=path), cache_implementation=cache) for path in ("fast", "reference")
    )
    assert_logits(fast.logits, reference.logits)
    plain, same = (
        generate(model, batch, method, cache_implementation=cache)
        for method in (None, replace(NOISY, factor_limit=1.0))
    )
    assert_plain(same, plain)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    model = zoo.build(name).to(dtype)
    batch = inputs_of(name, ROWS)
    batch["pixel_values"] = batch["pixel_values"].to(dtype)
    out, plain = generate(model, batch, NOISY), generate(model, batch)
    assert out.logits.isfinite().all()
    assert all(out.stacked(score).isfinite().all() for score in ("visual", "language", "total"))
    assert [fired.steps == NEW for fired in out.rows] == SEES
    assert (moved(out, plain) > 0.1).tolist() == SEES
