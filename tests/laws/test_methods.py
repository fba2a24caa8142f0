"""Properties of every method on every architecture."""

import warnings
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from heal import Method
from heal.errors import HealWarning, UnsupportedError
from heal.methods import available
from tests import zoo
from tests.known import known
from tests.laws.cases import CASES
from tests.laws.conftest import ROWS, WINDOW, Run, footprint, generate, inputs_of, model_of, rows_of, run, source_of
from tests.methods import slow
from tests.zoo import Row

NEW = 2
HOT: dict[str, Any] = {"do_sample": True, "temperature": 50.0, "suppress_tokens": [*range(zoo.IMAGE, zoo.VOCAB)]}
SCORES = {"output_scores": True}
SEES = [row.images > 0 for row in ROWS]
TEXT = (Row(images=0), Row(text_before=7, images=0, salt=1))
PADDED = ROWS[1:3]  # one image and a long text, two images
DISTINCT = (
    "llava",
    "llava_next",
    "qwen2_5_vl",
    "qwen3_vl",
    "internvl_qwen2",
    "idefics3",
    "paligemma",
    "gemma3",
    "paligemma2",
)
"""Architectures that differ in more than their language model."""
ANSWERS = [name for name in CASES if name not in ("beam", "guard")]
"""Methods that change the next-token distribution rather than the search or the finished answer."""

methods = pytest.mark.parametrize("method", CASES)
answers = pytest.mark.parametrize("method", ANSWERS)
every_model = pytest.mark.parametrize("name", zoo.NAMES)
distinct_models = pytest.mark.parametrize("name", DISTINCT)


def assert_logits(one: Tensor, other: Tensor, atol: float = 1e-4) -> None:
    assert_close(one, other, atol=atol, rtol=0)


def scale(logits: Tensor) -> float:
    """Two ways to compute the plain model differ by 1e-5 of its largest logit."""
    return max(1.0, float(logits.abs().max()))


def changed(out: Run, plain: Run, step: int = 0) -> list[bool]:
    """Whether the logits of a step differ, for each row."""
    far = (out.logits[:, step] - plain.logits[:, step]).abs().amax(-1)
    assert ((far > 1e-3) | (far < 1e-5 * scale(plain.logits))).all()  # clearly changed or equal
    return (far > 1e-3).tolist()


def test_every_method_is_in_the_matrix() -> None:
    assert set(CASES) == set(available()) - {"heal", "opera"}  # OPERA takes one prompt: tests/methods/test_opera.py


# ── neutral and active ───────────────────────────────────────────────────────────────────────────────────


@every_model
@methods
def test_neutral_equals_the_plain_model(name: str, method: str) -> None:
    out, plain = run(name, CASES[method].neutral, new=NEW), run(name, new=NEW)
    assert torch.equal(out.logits, plain.logits)
    assert torch.equal(out.tokens, plain.tokens)
    assert not out.fired
    assert known(out.fired).steps == 0
    assert known(out.fired).reason
    assert not any(out.rows)


@every_model
@answers
def test_active_changes_rows_with_images_and_is_counted(name: str, method: str) -> None:
    """Counters are zero exactly for rows whose logits equal those of the plain model."""
    case = CASES[method]
    out, plain = run(name, case.active, new=NEW), run(name, new=NEW)
    expected = SEES if case.pictures else [True] * len(ROWS)
    assert changed(out, plain) == expected
    assert [bool(fired) for fired in out.rows] == expected
    assert [fired.steps for fired in out.rows] == [NEW * change for change in expected]
    assert known(out.fired).steps == NEW
    assert known(out.fired).reason is None
    assert all(size > 0 for size in known(out.fired).sizes.values())
    for row, change in enumerate(expected):
        if not change:
            assert_logits(out.logits[row], plain.logits[row], 1e-5 * scale(plain.logits[row]))
            assert out.rows[row].reason


@every_model
def test_beam_equals_the_search_of_transformers(name: str) -> None:
    out, plain = run(name, CASES["beam"].active, new=NEW, **SCORES), run(name, new=NEW, num_beams=3, **SCORES)
    assert torch.equal(out.output.sequences, plain.output.sequences)
    assert torch.equal(out.output.sequences_scores, plain.output.sequences_scores)
    assert 0 < known(out.fired).steps < NEW  # the last token is never read
    assert known(out.fired).sizes == {"beams": 2.0}


@distinct_models
@methods
def test_text_alone(name: str, method: str) -> None:
    """Without an image, a method that needs one changes nothing and warns once."""
    case, model, batch = CASES[method], model_of(name), inputs_of(name, TEXT)
    new = NEW if method == "beam" else 1  # a search has an effect from the second token on
    options = {"max_new_tokens": new, "output_logits": True, "return_dict_in_generate": True}
    with (
        warnings.catch_warnings(record=True) as caught,
        case.active.attach(model, source=source_of(case.active, batch)) as handle,
    ):
        warnings.simplefilter("always")
        outputs = [model.generate(**batch, **options) for _ in range(2)]
    said = [w for w in caught if issubclass(w.category, HealWarning)]
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert len(said) == case.pictures
    assert bool(handle.fired) == (not case.pictures)
    if case.pictures:
        assert "no visual tokens" in known(handle.fired.reason)
        plain = run(name, rows=TEXT, new=1)
        assert all(torch.equal(torch.stack(out.logits, 1), plain.logits) for out in outputs)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────


def assert_row_alone(name: str, method: Method, rows: tuple[Row, ...], **options: Any) -> None:
    batch = run(name, method, rows, **options)
    logits, told = len(batch.logits) // len(rows), len(batch.tokens) // len(rows)
    for index, row in enumerate(rows):
        alone, own = run(name, method, (row,), **options), slice(index * logits, (index + 1) * logits)
        assert torch.equal(alone.tokens, batch.tokens[index * told : (index + 1) * told])
        assert_logits(alone.logits, batch.logits[own])
        for one, other in zip(alone.rows, batch.rows[own], strict=True):
            assert (one.steps, one.changes) == (other.steps, other.changes)
            assert one.sizes == pytest.approx(other.sizes, rel=1e-3, abs=1e-4)


@distinct_models
@answers
def test_row_alone_equals_row_in_padded_batch(name: str, method: str) -> None:
    assert_row_alone(name, CASES[method].active, rows_of(name)[1:], new=NEW)


@answers
def test_row_alone_equals_row_in_padded_batch_with_a_window(method: str) -> None:
    assert_row_alone(WINDOW, CASES[method].active, ROWS[1:], new=NEW)


# ── search and sampling ──────────────────────────────────────────────────────────────────────────────────


def row_inputs(name: str, row: Row) -> dict[str, Tensor]:
    return inputs_of(name, (row,))


def assert_slow(name: str, method: str, row: Row, tokens: list[int], logits: Tensor) -> None:
    case = CASES[method]
    oracle = slow.plain(model_of(name), row_inputs(name, row), tokens)
    changed = known(case.oracle)(model_of(name), row_inputs(name, row), tokens, case.open)
    assert np.abs(changed - oracle).max() > 1e-3  # otherwise agreement would prove nothing
    assert_logits(logits.double(), torch.from_numpy(changed), 1e-4 * scale(torch.from_numpy(oracle)))


def moving_beams(name: str, method: Method) -> Run:
    """A search with a temperature that makes beams change rows."""
    beams: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2, "new": 3}
    for seed in range(10):
        torch.manual_seed(seed)
        out = generate(model_of(name), inputs_of(name, PADDED), method, **HOT, **beams)
        at = out.output.beam_indices
        if (at[:, 1:] != at[:, :-1]).any():
            return out
    pytest.fail("the beams stay where they are")


@pytest.mark.parametrize(
    ("name", "method"), [*product(("llava", "qwen2_5_vl"), ANSWERS), ("gemma3", "pai"), ("gemma3", "vcd")]
)
def test_every_answer_of_a_search_equals_the_answer_alone(name: str, method: str) -> None:
    """The state of a method and the caches of its branches follow the beams."""
    out = moving_beams(name, CASES[method].open)
    for index, places in enumerate(out.output.beam_indices):
        logits = torch.stack([out.logits[place, step] for step, place in enumerate(places)])
        assert_slow(name, method, PADDED[index // 2], out.tokens[index].tolist(), logits)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
@answers
def test_every_answer_of_several_samples_equals_the_answer_alone(name: str, method: str) -> None:
    torch.manual_seed(0)
    options = HOT | {"temperature": 5.0, "num_return_sequences": 2}
    out = generate(model_of(name), inputs_of(name, PADDED), CASES[method].open, new=NEW, **options)
    assert not torch.equal(out.tokens[0], out.tokens[1])
    for index, tokens in enumerate(out.tokens.tolist()):
        assert_slow(name, method, PADDED[index // 2], tokens, out.logits[index])


@methods
def test_greedy_search_with_cutoffs_in_a_batch(method: str) -> None:
    """Cutoffs always keep the most likely tokens."""
    options = {"new": NEW, "num_beams": 2, "num_return_sequences": 2, **SCORES}
    out = run("llava", CASES[method].active, ROWS, **options)
    assert out.output.sequences_scores.isfinite().all()
    assert_row_alone("llava", CASES[method].active, ROWS, **options)


@methods
def test_sampling_repeats_with_its_seed(method: str) -> None:
    batch, found = inputs_of("llava", ROWS), []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(generate(model_of("llava"), batch, CASES[method].open, do_sample=True, temperature=3.0).tokens)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@methods
def test_global_generator_is_not_used(method: str) -> None:
    before = torch.get_rng_state()
    generate(model_of("llava"), inputs_of("llava", ROWS), CASES[method].active, new=2)
    assert torch.equal(torch.get_rng_state(), before)


# ── caches, turns, precision ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3", "paligemma"])
@methods
def test_static_cache_equals_dynamic_cache(name: str, method: str) -> None:
    dynamic = run(name, CASES[method].active, new=NEW)
    static = run(name, CASES[method].active, new=NEW, cache_implementation="static")
    assert torch.equal(static.tokens, dynamic.tokens)
    assert_logits(static.logits, dynamic.logits)
    assert known(static.fired).steps == known(dynamic.fired).steps
    assert known(static.fired).changes == known(dynamic.fired).changes


@methods
def test_generations_in_one_context_are_independent(method: str) -> None:
    model, expected = model_of("llava"), run("llava", CASES[method].active, new=NEW)
    options = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    text = source_of(CASES[method].active, inputs_of("llava", ROWS))
    with CASES[method].active.attach(model, source=text) as handle:
        for rows in (ROWS[:1], ROWS):
            out = model.generate(**inputs_of("llava", rows), **options)
            copies = len(out.logits[0]) // len(rows)
            assert_logits(torch.stack(out.logits, 1), expected.logits[: copies * len(rows)])
        assert handle.fired.steps == 2 * NEW or (method in ("beam", "guard") and 0 < handle.fired.steps < 2 * NEW)


@pytest.mark.parametrize("method", ["pai", "vcd", "vhr"])
def test_branches_reject_unsupported_generation(method: str) -> None:
    model, batch, passes = model_of("llava"), inputs_of("llava", ROWS[:1]), []
    embeds = model.get_input_embeddings()(batch["input_ids"])
    with CASES[method].active.attach(model):
        first = model.generate(**batch, max_new_tokens=2, return_dict_in_generate=True)
        hook = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
        ids = torch.cat([first.sequences, torch.tensor([[5, 6]])], 1)
        try:
            with pytest.raises(UnsupportedError, match="second turn"):
                model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    past_key_values=first.past_key_values,
                    max_new_tokens=1,
                )
            with pytest.raises(UnsupportedError, match="needs input_ids"):
                model.generate(**{**batch, "input_ids": None, "inputs_embeds": embeds}, max_new_tokens=1)
        finally:
            hook.remove()
    assert not passes


@pytest.mark.parametrize("method", ["pai", "vhr"])
def test_text_only_pass_needs_text(method: str) -> None:
    batch = inputs_of("llava", (Row(), Row(text_before=0, text_after=0)))
    with pytest.raises(UnsupportedError, match="add text to it"):
        generate(model_of("llava"), batch, CASES[method].active)


@pytest.mark.parametrize("method", ["dola", "memvr"])
def test_second_turn_continues_the_first(method: str) -> None:
    """The images of the first turn are still used."""
    model, case = model_of("llava"), CASES[method]
    options = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    with case.active.attach(model) as handle:
        first = model.generate(**inputs_of("llava", PADDED), **options)
        ids = torch.cat([first.sequences, torch.tensor([[5, 6], [7, 8]])], 1)
        mask = torch.nn.functional.pad(inputs_of("llava", PADDED)["attention_mask"], (0, NEW + 2), value=1)
        given = {"input_ids": ids, "attention_mask": mask, "past_key_values": first.past_key_values}
        second = model.generate(**given, **options)
        assert handle.fired.steps == 2 * NEW
        assert all(handle.row([row] * NEW).steps == NEW for row in range(2))
    pixels = inputs_of("llava", PADDED)["pixel_values"]
    plain = model.generate(input_ids=ids, attention_mask=mask, pixel_values=pixels, **options)
    assert (second.logits[0] - plain.logits[0]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
@answers
def test_half_precision(name: str, method: str) -> None:
    model, batch = zoo.build(name).to(torch.bfloat16), inputs_of(name, ROWS)
    batch["pixel_values"] = batch["pixel_values"].to(torch.bfloat16)
    out, plain = (generate(model, batch, m, new=2) for m in (CASES[method].open, None))
    assert out.logits.isfinite().all()
    far = (out.logits[:, 0] - plain.logits[:, 0]).abs().amax(-1) > 0.05
    assert far.tolist() == (SEES if CASES[method].pictures else [True] * len(ROWS))


# ── restored state ───────────────────────────────────────────────────────────────────────────────────────


class Interrupted(Exception):
    pass


def interrupt(ids: Tensor, scores: Any, **_: Any) -> Tensor:
    raise Interrupted


@cache
@torch.no_grad()
def plain_logits(name: str) -> Tensor:
    return model_of(name)(**inputs_of(name, ROWS)).logits


@every_model
@methods
def test_nothing_is_left_behind(name: str, method: str) -> None:
    model, batch = model_of(name), inputs_of(name, ROWS)
    plain, before = plain_logits(name), footprint(model)
    with CASES[method].active.attach(model, source=source_of(CASES[method].active, batch)):
        assert footprint(model) != before
        cache = model.generate(**batch, max_new_tokens=1, return_dict_in_generate=True).past_key_values
    assert footprint(model) == before
    assert not {"reorder_cache", "batch_select_indices", "batch_repeat_interleave"} & set(vars(cache))
    assert torch.equal(plain_logits.__wrapped__(name), plain)


@distinct_models
@methods
def test_nothing_is_left_behind_by_an_exception(name: str, method: str) -> None:
    model, plain = model_of(name), plain_logits(name)
    before, batch = footprint(model), inputs_of(name, ROWS)
    text = source_of(CASES[method].active, batch)
    with pytest.raises(Interrupted), CASES[method].active.attach(model, source=text):
        model.generate(**batch, max_new_tokens=2, stopping_criteria=[interrupt])
    assert footprint(model) == before
    assert torch.equal(plain_logits.__wrapped__(name), plain)


@methods
def test_context_continues_after_an_interruption(method: str) -> None:
    """Also if it came between the images and the prompt."""
    name = "qwen3_vl"
    model, expected = model_of(name), run(name, CASES[method].active, new=NEW)
    options = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    text = source_of(CASES[method].active, inputs_of(name, ROWS))
    with CASES[method].active.attach(model, source=text):
        with pytest.raises(Interrupted):
            model.generate(**inputs_of(name, rows_of(name)), stopping_criteria=[interrupt], **options)
        hook = model.register_forward_pre_hook(interrupt, prepend=True, with_kwargs=False)
        with pytest.raises(Interrupted):
            model.generate(**inputs_of(name, rows_of(name)), **options)
        hook.remove()
        out = model.generate(**inputs_of(name, ROWS), **options)
    assert_logits(torch.stack(out.logits, 1), expected.logits)
