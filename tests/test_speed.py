"""Speed measurement: three interleaved variants, correct figures, and an unchanged model."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from heal import speed
from heal.errors import ConfigError
from heal.methods import HEAL
from heal.speed import Setup, Speed, measure
from heal.speed_model import PRESETS, Shape, random_model

TINY = Shape(hidden=32, intermediate=48, heads=4, kv_heads=2, positions=24, visual=12)
LAYERS, BATCH, ROUNDS = 3, 2, 3
METHOD = HEAL(interval=4, masking="zero", replacement="zero")  # without noise, both paths must agree
STEPS = (1 + ROUNDS) * METHOD.interval  # one round of warm-up
REFERENCE_STEPS = 2 * METHOD.interval


@dataclass(frozen=True)
class Measured:
    speed: Speed
    model: Any
    arms: list[Any]
    times: list[list[list[float]]]
    states: list[list[Tensor]]
    """Keys and values of each variant's layers after the last round."""
    progress: list[str]


def states_of(arm: Any) -> list[Tensor]:
    return [t.clone() for layer in arm.cache.layers for t in (layer.keys, layer.values)]


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "PRESETS", {"tiny": TINY})
        yield patch


@pytest.fixture(scope="module")
def measured(patched: pytest.MonkeyPatch) -> Measured:
    seen: dict[str, Any] = {}
    original = speed._summary

    def spy(setup: Setup, shape: Shape, model: Any, arms: Any, times: Any) -> Speed:
        seen.update(model=model, arms=arms, times=times, states=[states_of(arm) for arm in arms])
        return original(setup, shape, model, arms, times)

    progress: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "_summary", spy)
        found = measure(Setup("tiny", LAYERS, BATCH, rounds=ROUNDS, method=METHOD), progress=progress.append)
    return Measured(found, **seen, progress=progress)


def test_setup_is_recorded(measured: Measured) -> None:
    found = measured.speed
    assert (found.preset, found.layers, found.batch, found.dtype) == ("tiny", LAYERS, BATCH, "float32")
    assert (found.threads, found.rounds, found.interval) == (1, ROUNDS, METHOD.interval)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert measured.progress == [
        "building the model",
        "processing the prompt",
        *(f"round {i + 1} of {ROUNDS}" for i in range(ROUNDS)),
    ]


def test_every_round_has_every_variant(measured: Measured) -> None:
    lengths = [[len(arm) for arm in round_] for round_ in measured.times]
    assert lengths == [[METHOD.interval] * 3, [METHOD.interval] * 3, [METHOD.interval] * 2]


def test_figures(measured: Measured) -> None:
    found, times = measured.speed, measured.times

    def step(arm: list[float]) -> float:
        *ordinary, refresh = arm
        return (3 * median(ordinary) + refresh) / 4

    ratios = sorted(step(r[1]) / step(r[0]) for r in times)
    assert found.plain_ms == pytest.approx(1e3 * median(step(r[0]) for r in times))
    assert found.heal_ms == pytest.approx(1e3 * median(step(r[1]) for r in times))
    assert found.reference_ms == pytest.approx(1e3 * median(step(r[2]) for r in times[:2]))
    assert [found.ratio_low, found.ratio, found.ratio_high] == pytest.approx(ratios)
    assert found.reference_ratio == pytest.approx(median(step(r[2]) / step(r[0]) for r in times[:2]))
    assert found.refresh_ms == pytest.approx(1e3 * median(r[1][-1] - median(r[1]) for r in times))
    plain, fast = measured.arms[:2]
    assert len(plain.prefills) == len(fast.prefills) == speed.PROMPT_ROUNDS
    assert found.prefill_plain_ms == pytest.approx(1e3 * median(plain.prefills))
    assert found.prefill_heal_ms == pytest.approx(1e3 * median(fast.prefills))
    assert min(found.plain_ms, found.prefill_plain_ms, found.prefill_heal_ms) > 0


def test_variants_decode_the_same_number_of_steps(measured: Measured) -> None:
    lengths = [{t.shape[2] for t in states} for states in measured.states]
    assert lengths == [{TINY.positions + n} for n in (STEPS, STEPS, REFERENCE_STEPS)]
    assert [t.shape[0] for states in measured.states for t in states] == [BATCH] * 3 * 2 * LAYERS


def test_plain_variant_is_unchanged(measured: Measured) -> None:
    with torch.inference_mode():
        alone = speed._Arm(measured.model, None, TINY, BATCH)
        alone.prefill()
        alone.steps(STEPS)
    for mine, theirs in zip(measured.states[0], states_of(alone), strict=True):
        assert torch.equal(mine, theirs)


def test_both_paths_agree(measured: Measured) -> None:
    plain, fast, reference = measured.states
    assert (fast[-1] - plain[-1]).abs().max() > 1e-3
    torch.testing.assert_close(
        fast[-1][:, :, : TINY.positions + REFERENCE_STEPS], reference[-1], atol=1e-4, rtol=1e-3
    )


def test_heads_were_calibrated(measured: Measured) -> None:
    tally = measured.arms[1].attachment.tallies.latest[-1]
    heads = [float(step[0].mean()) for step in tally.steps]
    assert len(heads) == 1 + STEPS + 1  # the prompt, the rounds, and the step for measuring memory
    expected = sum(heads) / len(heads) / (LAYERS * TINY.heads)
    assert measured.speed.calibrated_heads == pytest.approx(expected)
    assert 0 < expected <= 1


def test_refresh_is_the_last_step_of_a_round(measured: Measured) -> None:
    generation = measured.arms[1].attachment.latest
    assert generation.step == STEPS + 1
    assert STEPS % METHOD.interval == 0


def test_bytes(measured: Measured) -> None:
    dim = TINY.hidden // TINY.heads
    moments = BATCH * 2 * (1 + 2 * TINY.kv_heads * 2 * dim) * 4  # count, mean and variance of keys and values
    types = 2 * BATCH * TINY.heads
    assert measured.speed.extra_bytes_per_layer == moments + types
    cached = 2 * BATCH * TINY.kv_heads * dim * 4
    assert measured.speed.kv_bytes_per_layer == cached * (TINY.positions + STEPS + 1)
    # at least the attention scores of every head and position
    assert measured.speed.workspace_bytes >= BATCH * TINY.heads * (TINY.positions + STEPS) * 4


def test_state_does_not_grow(patched: pytest.MonkeyPatch, measured: Measured) -> None:
    longer = measure(Setup("tiny", LAYERS, BATCH, rounds=1, method=METHOD, reference=False))
    assert longer.extra_bytes_per_layer == measured.speed.extra_bytes_per_layer
    assert longer.kv_bytes_per_layer < measured.speed.kv_bytes_per_layer


def test_model_is_left_clean(measured: Measured) -> None:
    model = measured.model
    assert "generate" not in vars(model)
    assert all("attention" not in vars(arm.attachment.runtime) for arm in measured.arms[1:])
    assert model.config.text_config._attn_implementation == "sdpa"
    decoder = model.get_decoder()
    assert not any(layer._forward_pre_hooks or layer.self_attn.o_proj._forward_hooks for layer in decoder.layers)


def test_without_the_reference(patched: pytest.MonkeyPatch) -> None:
    found = measure(Setup("tiny", 2, rounds=1, method=HEAL(interval=1), dtype=torch.bfloat16, reference=False))
    assert (found.reference_ms, found.reference_ratio) == (None, None)
    assert (found.dtype, found.layers, found.batch) == ("bfloat16", 2, 1)
    assert found.ratio == found.ratio_low == found.ratio_high
    assert found.refresh_ms == 0  # every step is a refresh


def test_given_model(patched: pytest.MonkeyPatch) -> None:
    model = random_model(TINY, 2, torch.float32)
    found = measure(Setup("anything", rounds=1, method=HEAL(interval=1), reference=False), model)
    assert found.layers == 2
    dim = TINY.hidden // TINY.heads
    assert found.kv_bytes_per_layer == 2 * TINY.kv_heads * dim * 4 * (640 + 1 + 1 + 1)


@pytest.mark.parametrize("name", ["rounds", "layers", "batch", "threads"])
def test_counts_start_at_1(patched: pytest.MonkeyPatch, name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match="must be 1 or more"):
        Setup("tiny", **options)


def test_unknown_preset(patched: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'nonsense': choose one of tiny, or give a model"):
        measure(Setup("nonsense"))


def test_presets_match_the_real_models() -> None:
    llava, qwen = PRESETS["llava-1.5-7b"], PRESETS["qwen2.5-vl-7b"]
    assert (llava.hidden, llava.intermediate, llava.heads, llava.kv_heads, llava.visual) == (4096, 11008, 32, 32, 576)
    assert (qwen.hidden, qwen.intermediate, qwen.heads, qwen.kv_heads) == (3584, 18944, 28, 4)
    assert all(shape.positions > shape.visual > 0 for shape in PRESETS.values())
