"""What HEAL promises, on every architecture."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close
from transformers import PreTrainedModel

from heal import HEAL, HeadType
from heal.analysis.contribution import REPLACEMENTS
from heal.analysis.counterfactual import MASKINGS, Attended
from heal.analysis.information import MEASURES, HeadScores
from heal.analysis.moments import Moments
from heal.analysis.taxonomy import HeadMap
from heal.errors import HealWarning, UnsupportedError
from heal.methods import heal_runtime
from heal.methods.heal_runtime import HealRuntime
from tests import zoo
from tests.laws import oracle
from tests.laws.conftest import (
    EVERY,
    HEADS,
    LAYERS,
    NEW,
    ROWS,
    WINDOW,
    Run,
    build,
    footprint,
    generate,
    inputs_of,
    model_of,
    rows_of,
    run,
)
from tests.zoo import Row

ZERO = HEAL(alpha=0.6, masking="zero", replacement="zero", interval=2, sigma_causal=1.0)
NEUTRAL_SINKS = replace(ZERO, sinks="neutral", sigma_info=1.0)
NOISY = HEAL(interval=2)
MEASURE = replace(NOISY, calibrate=False)
SYNERGY, UNKNOWN = int(HeadType.SYNERGY), int(HeadType.UNKNOWN)
ONE = ROWS[:1]
MIXED = ROWS[2:]  # two images, and text alone
BEAMS = {"num_beams": 3, "num_return_sequences": 3, "new": 5}
SAMPLES = {"do_sample": True, "num_return_sequences": 2}
SEES = [row.images > 0 for row in ROWS]
TEXT = (Row(images=0), Row(text_before=7, images=0, salt=1))

every_model = pytest.mark.parametrize("name", EVERY)
every_static = pytest.mark.parametrize("name", zoo.NAMES)  # a static cache refuses prompts beyond a window

greedy_and_beams = pytest.mark.parametrize(("rows", "options"), [(ROWS, {}), (MIXED, BEAMS)], ids=["greedy", "beams"])


def assert_logits(one: Tensor, other: Tensor, atol: float = 1e-4) -> None:
    assert_close(one, other, atol=atol, rtol=0)


def assert_plain(out: Run, plain: Run) -> None:
    """In units of the largest logit: two ways to compute the plain model differ by 1e-5 themselves."""
    assert_logits(out.logits, plain.logits, atol=1e-5 * max(1.0, float(plain.logits.abs().max())))


def moved(one: Run, other: Run, step: int = 0) -> Tensor:
    """By row, how far the logits of a step are apart."""
    return (one.logits[:, step] - other.logits[:, step]).abs().amax(-1)


# ── neutral: nothing to do means nothing done ────────────────────────────────────────────────────────────

real_factors, real_classify = heal_runtime.factors, heal_runtime.classify


def at_equilibrium(
    visual: Tensor, language: Tensor, calibrated: Tensor, alpha: float, limit: float | None, one_sided: bool
) -> Any:
    # in single precision, 1 − α would lose its digits where a head reads hardly any language
    visual, language = visual.double(), language.double()
    factors = real_factors(visual, language, calibrated, visual / (visual + language), limit)
    return tuple(factor.float() for factor in factors)


def without_synergy(*args: Any) -> HeadMap:
    types = real_classify(*args).types
    return HeadMap(types.masked_fill(types == SYNERGY, int(HeadType.VISUAL)))


@every_model
def test_heads_at_the_equilibrium_leave_the_plain_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heal_runtime, "factors", at_equilibrium)
    out = generate(model_of(name), inputs_of(name, ROWS), NOISY)
    assert (out.stacked("types")[0] == SYNERGY).any(-1).any(-1).all()
    assert_plain(out, run(name))


@every_model
def test_no_synergy_heads_leave_the_plain_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heal_runtime, "classify", without_synergy)
    out = generate(model_of(name), inputs_of(name, ROWS), NOISY)
    assert_plain(out, run(name))
    assert not out.fired
    assert out.fired.reason == "no head was typed synergy"


@every_model
def test_factors_limited_to_one_leave_the_plain_model(name: str) -> None:
    out = run(name, replace(NOISY, factor_limit=1.0))
    assert_plain(out, run(name))
    assert (out.stacked("types") == SYNERGY).any()
    assert not out.fired
    assert "equilibrium" in out.fired.reason


@every_model
@greedy_and_beams
def test_measuring_alone_is_the_plain_model_to_the_bit(
    name: str, rows: tuple[Row, ...], options: dict[str, int]
) -> None:
    plain, out = (run(name, method, rows, **options) for method in (None, MEASURE))
    assert torch.equal(out.logits, plain.logits)
    assert torch.equal(out.output.sequences, plain.output.sequences)
    assert out.stacked("visual").isfinite().all()
    assert out.stacked("beta").isnan().all()


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", WINDOW])
def test_tracing_changes_nothing(name: str) -> None:
    """Without a trace, layers that have nothing to do are not measured between refreshes."""
    for layers in (None, (1,)):
        method = replace(NOISY, layers=layers)
        assert torch.equal(run(name, method, trace=False).logits, run(name, method).logits)


@every_model
def test_image_at_the_very_end_of_the_prompt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the position that is run twice is a visual one."""
    monkeypatch.setattr(heal_runtime, "factors", at_equilibrium)
    batch = inputs_of(name, (Row(text_after=0), Row(text_before=7, text_after=0, salt=1)))
    assert_plain(generate(model_of(name), batch, NOISY, new=2), generate(model_of(name), batch, new=2))


# ── the whole method against an independent one ──────────────────────────────────────────────────────────


def oracle_settings(method: HEAL) -> oracle.Settings:
    assert method.alpha is not None
    assert method.factor_limit is not None
    return oracle.Settings(
        alpha=method.alpha,
        limit=method.factor_limit,
        interval=method.interval,
        sigma_causal=method.sigma_causal,
        sigma_info=method.sigma_info,
        neutral_sinks=method.sinks == "neutral",
        layers=method.layers or tuple(range(LAYERS)),
    )


def assert_oracle(name: str, method: HEAL, rows: tuple[Row, ...]) -> Run:
    runs = [run(name, replace(method, path=path), rows, causal=True) for path in ("fast", "reference")]
    for index, row in enumerate(rows):
        batch = inputs_of(name, (row,), causal=True)
        steps = oracle.generate(model_of(name), batch, NEW, oracle_settings(method))
        for out in runs:
            assert_steps(out, index, steps)
    assert all(out.fired.steps == NEW for out in runs)
    return runs[0]


def assert_steps(out: Run, row: int, steps: list[oracle.Step]) -> None:
    for step, (record, expected) in enumerate(zip(out.records, steps, strict=True)):
        np.testing.assert_array_equal(record.types[row], expected.types)
        known = expected.types != UNKNOWN
        for name in ("visual", "language", "total", "contribution"):
            measured, right = getattr(record, name)[row].numpy(), getattr(expected, name)
            # a score near 0 is a difference of similarities, which are of the order of 1
            np.testing.assert_allclose(measured[known], right[known], rtol=1e-4, atol=1e-5)
            assert np.isnan(measured[~known]).all()
        for name in ("beta", "gamma"):
            factor = getattr(record, name)[row].nan_to_num(1.0)
            np.testing.assert_allclose(factor, getattr(expected, name), rtol=1e-4)
        assert_logits(out.logits[row, step].double(), torch.from_numpy(expected.logits))


@every_model
def test_both_paths_equal_the_oracle(name: str) -> None:
    out = assert_oracle(name, ZERO, rows_of(name)[2:])
    assert set(out.stacked("types").unique().tolist()) >= {0, 2, 3, 4}


@every_model
def test_both_paths_equal_the_oracle_with_neutral_sinks(name: str) -> None:
    out = assert_oracle(name, NEUTRAL_SINKS, ROWS[1:3])
    assert (out.stacked("types") == int(HeadType.INFO_REDUNDANT)).any()


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", WINDOW])
def test_layers_that_take_no_part_are_left_alone(name: str) -> None:
    out = assert_oracle(name, replace(ZERO, layers=(1,)), ROWS[:3])
    others = torch.tensor([0, 2])
    assert (out.stacked("types")[:, :, others] == UNKNOWN).all()
    assert (out.stacked("types")[:, :, 1] != UNKNOWN).all()
    assert out.stacked("beta")[:, :, others].isnan().all()
    assert out.stacked("beta")[:, :, 1].isfinite().all()


@every_model
def test_first_token_is_calibrated(name: str) -> None:
    """That it is calibrated rightly, the oracle says."""
    out = run(name, NOISY)
    off = ((out.records[0].beta.nan_to_num(1.0) - 1).abs() > 1e-3).any(-1).any(-1)
    assert off.tolist() == SEES
    change = moved(out, run(name))
    assert (change[off] > 1e-2).all()
    assert (change[~off] < 1e-4).all()


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────


def retyped(record: Any) -> np.ndarray:
    """The types that the scores of a step say, by the oracle."""
    scores = [getattr(record, name).double().numpy() for name in ("visual", "language", "total", "contribution")]
    settings = oracle.Settings(alpha=0.5)
    return np.stack([oracle.classify(*(score[row] for score in scores), settings) for row in range(len(ROWS))])


@every_model
def test_types_are_found_anew_at_intervals_and_act_from_the_next_step(name: str) -> None:
    records = run(name, NOISY).records
    types = [record.types for record in records]
    assert [record.refreshed for record in records] == [True, False, True, False]
    assert torch.equal(types[0], types[1])
    assert torch.equal(types[0], types[2])
    assert not torch.equal(types[2], types[3])
    np.testing.assert_array_equal(types[3], retyped(records[2]))


@pytest.mark.parametrize(("interval", "refreshed"), [(5, [0, 5, 10]), (10, [0, 10]), (1000, [0])])
def test_interval_counts_from_the_first_token(interval: int, refreshed: list[int]) -> None:
    records = run("llava", HEAL(interval=interval), ROWS[:2], new=12).records
    assert [step for step, record in enumerate(records) if record.refreshed] == refreshed
    turns = [step for step in range(1, 12) if not torch.equal(records[step].types, records[step - 1].types)]
    assert turns == [step + 1 for step in refreshed[1:]]


# ── which position belongs to whom ───────────────────────────────────────────────────────────────────────


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Attended]:
    """Whatever the first layer attends to from now on."""
    seen: list[Attended] = []

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def watch(self: HealRuntime, generation: Any, layer: int, at: Attended, *rest: Any) -> Any:
            if layer == 0:
                seen.append(at)
            return original(self, generation, layer, at, *rest)

        return watch

    for name in ("observe", "attend"):
        monkeypatch.setattr(HealRuntime, name, watching(getattr(HealRuntime, name)))
    return seen


def sets_of(model: PreTrainedModel, ids: Tensor, present: Tensor) -> Tensor:
    """[rows, sets, positions], by the words of the method."""
    visual = zoo.visual_mask(model, ids)
    first = (present.cumsum(1) == 1) & present.bool()
    neutral = (first | (ids == zoo.BOS) | (ids == zoo.PAD)) & ~visual
    return torch.stack([visual, ~visual & ~neutral, neutral], 1) & present.bool()[:, None]


def without_bos(name: str, rows: tuple[Row, ...]) -> dict[str, Tensor]:
    """A first token that is no special one: it is a sink for its place alone."""
    batch = inputs_of(name, rows)
    batch["input_ids"][batch["input_ids"] == zoo.BOS] = 7
    return batch


@pytest.mark.parametrize(
    ("name", "cache"),
    [*((name, "dynamic") for name in zoo.NAMES), ("llava", "static"), ("paligemma", "static"), ("gemma3", "static")],
)
def test_positions_belong_where_the_ids_say(name: str, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, model, batch = watched(monkeypatch), model_of(name), without_bos(name, rows_of(name)[-4:])
    ids, present = batch["input_ids"], batch["attention_mask"]
    out = generate(model, batch, NEUTRAL_SINKS, new=2, cache_implementation=cache)
    assert len(seen) == 3  # the prompt, its last position once more, one token
    for at, new in zip(seen, (0, 0, 1), strict=True):
        full = torch.cat([ids, out.tokens[:, :new]], 1)
        there = torch.cat([present, torch.ones_like(out.tokens[:, :new])], 1)
        assert torch.equal(at.regions.masks, sets_of(model, full, there))


def two_turns(name: str, method: HEAL | None) -> Tensor:
    """The logits of the second answer in one conversation, asked for by four text tokens."""
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
    monkeypatch.setattr(heal_runtime, "factors", at_equilibrium)
    assert_logits(two_turns(name, NOISY), two_turns(name, None))


def test_second_turn_has_no_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    two_turns("llava", NEUTRAL_SINKS)
    starts = without_bos("llava", ROWS[:3])["attention_mask"].argmax(1)
    neutral = seen[-1].regions.masks[:, 2]
    assert neutral.nonzero().tolist() == [[row, start] for row, start in enumerate(starts.tolist())]


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────


@every_model
def test_seed_decides(name: str) -> None:
    """Neither the state of torch's own generator nor a single beam does."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = generate(model_of(name), inputs_of(name, ROWS), NOISY, num_beams=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.logits, run(name, NOISY).logits)
    assert torch.equal(again.tokens, run(name, NOISY).tokens)
    other = generate(model_of(name), inputs_of(name, ROWS), replace(NOISY, seed=1), new=1)
    assert (moved(other, again) > 1e-4).tolist() == SEES


@every_model
def test_sampling_stream_is_not_disturbed(name: str) -> None:
    plain, out = (run(name, method, MIXED, seed=0, **SAMPLES) for method in (None, MEASURE))
    assert torch.equal(out.tokens, plain.tokens)
    assert not torch.equal(plain.tokens, run(name, rows=MIXED, seed=1, **SAMPLES).tokens)


def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[list[HeadScores]]:
    """The single draws of every layer that is measured from now on, before they are averaged."""
    drawn, original = [], heal_runtime.mean_scores
    monkeypatch.setattr(heal_runtime, "mean_scores", lambda draws: drawn.append(draws) or original(draws))
    return drawn


@pytest.mark.usefixtures("without_type_checker")
def test_paths_agree_in_the_mean_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, draws = 20, 10
    drawn, batch = drawn_by(monkeypatch), inputs_of("llava", ONE)

    def sample(path: str, first: int) -> np.ndarray:
        drawn.clear()
        for seed in range(first, first + seeds):
            generate(model_of("llava"), batch, replace(MEASURE, path=path, seed=seed, draws=draws), new=1)
        scores = [[torch.stack([d.visual, d.language, d.total]) for d in layer] for layer in drawn]
        table = torch.stack([torch.stack(layer) for layer in scores]).unflatten(0, (seeds, LAYERS))
        return table.transpose(1, 2).reshape(seeds * draws, -1).numpy()

    fast, reference = sample("fast", 0), sample("reference", seeds)
    error = np.sqrt((fast.var(0, ddof=1) + reference.var(0, ddof=1)) / len(fast))
    z = np.abs(fast.mean(0) - reference.mean(0)) / error
    assert len(fast) == 200
    assert len(z) == 3 * LAYERS * HEADS
    assert error.max() < 0.03  # so that agreement means something
    assert z.max() < stats.norm.isf(0.01 / 2 / len(z))


def test_draws_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    one, drawn = run("llava", MEASURE, new=1).records[0], drawn_by(monkeypatch)
    three = generate(model_of("llava"), inputs_of("llava", ROWS), replace(MEASURE, draws=3), new=1).records[0]
    assert [len(draws) for draws in drawn] == [3] * LAYERS
    for layer, name in product(range(LAYERS), ("visual", "language", "total")):
        values = torch.stack([getattr(scores, name) for scores in drawn[layer]])
        assert_close(getattr(three, name)[:, layer], values.mean(0))
        assert torch.equal(values[0], getattr(one, name)[:, layer])
        assert all((values[i] - values[j]).abs().max() > 1e-3 for i, j in ((0, 1), (0, 2), (1, 2)))


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────


def assert_row_alone(name: str, method: HEAL, rows: tuple[Row, ...], **options: Any) -> None:
    batch = run(name, method, rows, **options)
    copies = len(batch.logits) // len(rows)
    for index, row in enumerate(rows):
        alone, own = run(name, method, (row,), **options), slice(index * copies, (index + 1) * copies)
        assert torch.equal(alone.tokens, batch.tokens[own])
        assert_logits(alone.logits, batch.logits[own])
        assert_fired(alone, batch, own)


def assert_fired(alone: Run, batch: Run, own: slice) -> None:
    for one, other in zip(alone.rows, batch.rows[own], strict=True):
        assert (one.steps, one.changes) == (other.steps, other.changes)
        assert one.sizes == pytest.approx(other.sizes, rel=1e-3)
    if alone.records:  # a row of text alone is not even measured
        assert torch.equal(alone.stacked("types"), batch.stacked("types")[own])


@every_model
def test_row_alone_equals_row_in_padded_batch(name: str) -> None:
    rows = rows_of(name)
    assert_row_alone(name, NOISY, rows)
    assert [bool(fired) for fired in run(name, NOISY, rows).rows] == [
        row.images + row.video_frames > 0 for row in rows
    ]


@pytest.mark.parametrize(
    "method",
    [
        replace(NOISY, masking="uniform", replacement="uniform", measure="l2"),
        replace(NOISY, covariance="full", replacement="cauchy", measure="cosine+l2"),
        replace(NOISY, covariance="full", path="reference", yeo_johnson=True),
        replace(NOISY, draws=2, sinks="neutral", replacement="none"),
    ],
    ids=["uniform", "full", "full reference", "draws"],
)
def test_row_alone_equals_row_in_padded_batch_with_other_noise(method: HEAL) -> None:
    assert_row_alone("llava", method, ROWS[1:3])


@every_model
def test_beams_of_a_row_alone_equal_those_in_a_batch(name: str) -> None:
    assert_row_alone(name, NOISY, MIXED, **BEAMS)


def forced(name: str, row: Row, tokens: list[int]) -> Run:
    """A row alone that is made to say these tokens."""
    batch = inputs_of(name, (row,))
    prompt = batch["input_ids"].shape[1]
    given = {"prefix_allowed_tokens_fn": lambda _, ids: [tokens[len(ids) - prompt]]}
    return generate(model_of(name), batch, NOISY, new=len(tokens), **given)


def moving_beams(name: str) -> tuple[Run, int]:
    """A search, hot enough for beams to change places, and the answer whose beam did so most often."""
    hot = {"do_sample": True, "temperature": 50.0, "suppress_tokens": [*range(zoo.IMAGE, zoo.VOCAB)]}
    for seed in range(10):
        torch.manual_seed(seed)
        out = generate(model_of(name), inputs_of(name, MIXED[:1]), NOISY, **hot, **BEAMS)
        at = out.output.beam_indices
        moves = (at[:, 1:] != at[:, :-1]).sum(1)
        if moves.max() > 1:
            return out, int(moves.argmax())
    pytest.fail("the beams stay where they are")


@every_model
def test_state_follows_the_beams(name: str) -> None:
    """Every token of an answer has the logits that it has when the same answer is given without beams."""
    beams, index = moving_beams(name)
    steps = list(enumerate(beams.output.beam_indices[index].tolist()))
    alone = forced(name, MIXED[0], beams.tokens[index].tolist())
    assert_logits(alone.logits[0], torch.stack([beams.logits[place, step] for step, place in steps]))
    types = torch.stack([beams.records[step].types[place] for step, place in steps])
    assert torch.equal(alone.stacked("types")[0], types)


@every_model
def test_beams_of_both_paths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros need no moments but the count: that the others are right as well is looked up at every step."""
    reference = generate(model_of(name), inputs_of(name, MIXED), replace(ZERO, path="reference"), **BEAMS)
    steps, original = [], HealRuntime._scores

    def check(
        self: HealRuntime, generation: Any, layer: int, at: Attended, moments: Moments, real: Any
    ) -> HeadScores:
        fresh = Moments.of(at.key, at.value, at.regions)
        assert torch.equal(moments.count, fresh.count)
        assert_close(moments.mean, fresh.mean, atol=1e-5, rtol=1e-4)
        assert_close(moments.squared, fresh.squared, atol=1e-4, rtol=1e-4)
        steps.append(generation.step)
        return original(self, generation, layer, at, moments, real)

    monkeypatch.setattr(HealRuntime, "_scores", check)
    fast = generate(model_of(name), inputs_of(name, MIXED), ZERO, **BEAMS)
    assert set(steps) == set(range(BEAMS["new"]))
    assert torch.equal(fast.tokens, reference.tokens)
    assert_logits(fast.logits, reference.logits)


@every_model
def test_several_samples_of_a_row(name: str) -> None:
    out = run(name, NOISY, MIXED, seed=3, **SAMPLES)
    assert [fired.steps for fired in out.rows] == [NEW, NEW, 0, 0]
    assert not torch.equal(out.tokens[0], out.tokens[1])
    if name in ("llava", WINDOW):
        assert_logits(forced(name, MIXED[0], out.tokens[1].tolist()).logits[0], out.logits[1])


# ── caches, windows, precision ───────────────────────────────────────────────────────────────────────────


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
def test_window_that_is_reached_around_the_first_tokens(window: int, cache: str) -> None:
    """The prompt fills the smaller window; the other is full two tokens later."""
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


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────

WORLDS = [*((masking, "diagonal") for masking in MASKINGS), ("gaussian", "full")]


def with_options(world: tuple[str, str], replacement: str, measure: str) -> Run:
    masking, covariance = world
    options = {"masking": masking, "covariance": covariance, "replacement": replacement, "measure": measure}
    return run("llava", HEAL(**options), ROWS[:2], new=1)


@pytest.mark.parametrize("world", WORLDS, ids="-".join)
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.usefixtures("without_type_checker")
def test_every_combination_fires(world: tuple[str, str], measure: str) -> None:
    plain = run("llava", rows=ROWS[:2], new=1)
    for replacement in REPLACEMENTS:
        out = with_options(world, replacement, measure)
        assert all(out.rows)
        assert out.logits.isfinite().all()
        assert (moved(out, plain) > 1e-3).all()
        assert out.stacked("contribution").isnan().all() == (replacement == "none")


def test_every_option_makes_a_difference() -> None:
    """Two values of an option never measure the same."""
    worlds = [with_options(world, "gaussian", "cosine").records[0].visual for world in WORLDS]
    measures = [with_options(WORLDS[0], "gaussian", measure).records[0].visual for measure in MEASURES]
    replaced = [
        with_options(WORLDS[0], how, "cosine").records[0].contribution for how in REPLACEMENTS if how != "none"
    ]
    for values in (worlds, measures, replaced):
        assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(values) for b in values[:i])


def test_swap_with_itself_shows_nothing() -> None:
    method = replace(NOISY, masking="swap", replacement="swap", interval=1)
    same, other = (run("llava", method, rows) for rows in (ONE * 2, ROWS[:2]))
    for name in ("visual", "language", "total", "contribution"):
        assert same.stacked(name).abs().max() < 1e-6
        assert other.stacked(name).abs().max() > 1e-2
    assert other.fired.steps == NEW


# ── nothing to do, and nothing left behind ───────────────────────────────────────────────────────────────


@every_model
def test_text_alone_is_the_plain_model_and_says_so_once(name: str) -> None:
    model, batch = model_of(name), inputs_of(name, TEXT)
    options = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    with warnings.catch_warnings(record=True) as caught, NOISY.attach(model) as handle:
        warnings.simplefilter("always")
        outputs = [model.generate(**batch, **options) for _ in range(2)]
    for out in outputs:
        assert torch.equal(torch.stack(out.logits, 1), run(name, rows=TEXT).logits)
    assert len([warning for warning in caught if issubclass(warning.category, HealWarning)]) == 1
    assert handle.fired.changes == handle.fired.steps == 0
    assert "no visual tokens" in handle.fired.reason


@every_model
def test_nothing_is_left_behind(name: str) -> None:
    model, batch = build(name), inputs_of(name, ROWS)
    plain, before = generate(model, batch), footprint(model)  # the library leaves hooks of its own at first use
    with NOISY.attach(model):
        assert footprint(model) != before
        cache = model.generate(**batch, max_new_tokens=1, return_dict_in_generate=True).past_key_values
    assert footprint(model) == before
    assert "generate" not in vars(model)
    assert not {"reorder_cache", "batch_select_indices", "batch_repeat_interleave"} & set(vars(cache))
    with pytest.raises(ZeroDivisionError), NOISY.attach(model):
        raise ZeroDivisionError
    assert footprint(model) == before
    assert torch.equal(generate(model, batch).logits, plain.logits)
