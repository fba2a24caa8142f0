"""Speed measurement: interleaved variants, correct figures, and an unchanged model."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from heal import speed
from heal.errors import ConfigError, HealError, HealWarning
from heal.kernels import interpreted
from heal.methods import HEAL
from heal.speed import Setup, Speed, in_turn, measure
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
    times: list[dict[str, list[float]]]
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

    def spy(setup: Setup, shape: Shape, arms: Any, times: Any, skipped: Any) -> Speed:
        seen.update(model=arms[0].model, arms=arms, times=times, states=[states_of(arm) for arm in arms])
        return original(setup, shape, arms, times, skipped)

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
    both, three = ["plain", "fast"], ["plain", "fast", "reference"]
    assert [list(round_) for round_ in measured.times] == [three, three, both]
    assert {len(steps) for round_ in measured.times for steps in round_.values()} == {METHOD.interval}


def test_every_variant_follows_every_other_one() -> None:
    for arms in ("ab", "abc"):
        orders = ["".join(in_turn(arms, turn)) for turn in range(2 * len(arms))]
        assert set(orders) == {"".join(order) for order in permutations(arms)}


def test_figures(measured: Measured) -> None:
    found, times = measured.speed, measured.times

    def step(arm: list[float]) -> float:
        *ordinary, refresh = arm
        return (3 * median(ordinary) + refresh) / 4

    plain_ms = 1e3 * median(step(r["plain"]) for r in times)
    ratios = {name: sorted(step(r[name]) / step(r["plain"]) for r in times if name in r) for name in times[0]}
    plain, fast, reference = found.arms
    assert [arm.name for arm in found.arms] == ["plain", "fast", "reference"]
    assert [arm.implementation for arm in found.arms] == ["sdpa", "fast", "reference"]
    assert plain.ms == pytest.approx(plain_ms)
    assert (plain.ratio, plain.ratio_low, plain.ratio_high, plain.refresh_ms) == (1, 1, 1, None)
    assert plain.prefill_ratio == 1
    assert fast.ms == pytest.approx(1e3 * median(step(r["fast"]) for r in times))
    assert reference.ms == pytest.approx(1e3 * median(step(r["reference"]) for r in times[:2]))
    assert [fast.ratio_low, fast.ratio, fast.ratio_high] == pytest.approx(ratios["fast"])
    assert reference.ratio == pytest.approx(median(ratios["reference"]))
    assert fast.refresh_ms == pytest.approx(1e3 * median(r["fast"][-1] - median(r["fast"]) for r in times))
    assert [len(arm.prefills) for arm in measured.arms] == [speed.PROMPT_ROUNDS, speed.PROMPT_ROUNDS, 1]
    for arm, own in zip(found.arms, measured.arms, strict=True):
        assert arm.prefill_ms == pytest.approx(1e3 * median(own.prefills))
        assert min(arm.ms, arm.prefill_ms, arm.ratio) > 0
    expected = (fast.prefill_ms - plain_ms / BATCH) / plain.prefill_ms
    assert fast.prefill_ratio == pytest.approx(expected)


def test_one_flat_row_per_variant(measured: Measured) -> None:
    rows = measured.speed.rows()
    assert [(row["name"], row["preset"]) for row in rows] == [(n, "tiny") for n in ("plain", "fast", "reference")]
    assert all(not isinstance(value, (list, dict)) for row in rows for value in row.values())


# ── the fused path ────────────────────────────────────────────────────────────────────────────────────────

EXPECTED = HEAL(preset="expected", interval=2, heads="all", mad=float("inf"))


def short(method: HEAL, **options: Any) -> Speed:
    return measure(Setup("tiny", 2, rounds=2, method=method, reference=False, **options))


def test_the_fused_path_is_measured_with_expected_noise(patched: pytest.MonkeyPatch) -> None:
    found = short(EXPECTED)
    assert [arm.name for arm in found.arms] == ["plain", "fast", "fused"]
    assert found.arm("fused").implementation.startswith("fused, ")
    assert all(min(arm.ms, arm.ratio, arm.prefill_ms) > 0 for arm in found.arms)
    assert found.skipped == {}


def test_the_fused_path_is_left_out_with_a_reason(patched: pytest.MonkeyPatch) -> None:
    found = short(HEAL(preset="gaussian", interval=2))
    assert [arm.name for arm in found.arms] == ["plain", "fast"]
    assert found.skipped == {"fused": "gaussian masking with diagonal covariance"}
    with pytest.raises(ConfigError, match="fused was not measured: choose one of plain, fast"):
        found.arm("fused")


@pytest.mark.skipif(interpreted(), reason="Triton covers bfloat16")
def test_a_layer_that_the_fused_path_does_not_cover_leaves_it_out(patched: pytest.MonkeyPatch) -> None:
    found = short(EXPECTED, dtype=torch.bfloat16)
    assert found.skipped == {"fused": "bfloat16 attention on a CPU"}


def test_a_fused_path_that_fell_back_later_is_an_error(patched: pytest.MonkeyPatch) -> None:
    original = speed._round

    def falling(arms: Any, interval: int, number: int) -> Any:
        arms[-1].runtime._fall_back("a full window")
        return original(arms, interval, number)

    message = "the fused path was not used in every step: a full window"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", HealWarning)
        patch.setattr(speed, "_round", falling)
        with pytest.raises(HealError, match=message):
            short(EXPECTED)


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_device_that_is_missing(patched: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="there is no device 'cuda' here"):
            short(EXPECTED, device="cuda")
    with pytest.raises(ConfigError, match="a model on device 'meta' has no weights"):
        short(EXPECTED, device="meta")


def test_variants_decode_the_same_number_of_steps(measured: Measured) -> None:
    lengths = [{t.shape[2] for t in states} for states in measured.states]
    assert lengths == [{TINY.positions + n} for n in (STEPS, STEPS, REFERENCE_STEPS)]
    assert [t.shape[0] for states in measured.states for t in states] == [BATCH] * 3 * 2 * LAYERS


def test_plain_variant_is_unchanged(measured: Measured) -> None:
    with torch.inference_mode():
        alone = speed.Arm(measured.model, None, TINY, BATCH)
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
    assert [arm.name for arm in found.arms] == ["plain", "fast"]
    assert (found.dtype, found.device, found.layers, found.batch) == ("bfloat16", "cpu", 2, 1)
    fast = found.arm("fast")
    assert fast.ratio == fast.ratio_low == fast.ratio_high
    assert fast.refresh_ms == 0  # every step is a refresh


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
