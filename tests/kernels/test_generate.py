"""HEAL with the kernels against HEAL by torch operations, in whole generations, and what a step launches."""

from functools import cache
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from heal import HEAL
from heal.errors import HealWarning
from heal.kernels import launch
from heal.launch_counter import Counts, LaunchCounter
from tests import zoo
from tests.kernels.conftest import DEVICE
from tests.laws.conftest import generate
from tests.zoo import Row

PADDED = [Row(), Row(text_before=5, text_after=7, salt=1)]
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("llava", SMALL | {"num_key_value_heads": 4}),
    "qwen2_vl": ("qwen2_vl", SMALL),
    "gemma3 with a window": ("gemma3", SMALL | {"sliding_window": 8}),
}


@cache
def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    kind, options = MODELS[name]
    return zoo.build(kind, **options).to(DEVICE, dtype)


def inputs_of(model: Any, rows: list[Row] = PADDED) -> dict[str, torch.Tensor]:
    batch = {key: value.to(DEVICE) for key, value in zoo.inputs(model, rows).items()}
    return batch | {"pixel_values": batch["pixel_values"].to(model.dtype)}


def both(model: Any, method: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    method, batch = {"interval": 2} | (method or {}), inputs_of(model)
    fast, fused = (
        generate(model, batch, HEAL(preset="expected", path=path, **method), **options) for path in ("fast", "fused")
    )
    assert torch.equal(fast.tokens, fused.tokens)
    for name in ("visual", "language", "total", "contribution", "beta", "gamma"):
        # the results of layers that are not calibrated are NaN
        one, other = fast.stacked(name), fused.stacked(name)
        assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert torch.equal(fast.stacked("types"), fused.stacked("types"))
    return fast, fused


@pytest.mark.parametrize("name", MODELS)
def test_greedy_decoding_is_that_of_torch(name):
    fast, fused = both(model_of(name), new=3)
    assert_close(fast.logits, fused.logits, rtol=0, atol=1e-4)
    assert fused.fired.changes == fast.fired.changes > 0
    assert fused.fired.sizes == pytest.approx(fast.fired.sizes, rel=1e-3)


def test_beams():
    fast, fused = both(model_of("qwen2_vl"), num_beams=2, num_return_sequences=2, new=3)
    assert fused.fired.changes == fast.fired.changes > 0


def test_a_static_cache_with_neutral_positions_and_other_options():
    method = {"sinks": "neutral", "measure": "cosine+l2", "drift": "language", "mad": float("inf"), "heads": "all"}
    fast, fused = both(model_of("qwen2_vl"), method, new=2, cache_implementation="static")
    assert fused.fired.changes == fast.fired.changes > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """Tokens may differ where two logits are rounded to the same number: scores of the first token are compared."""
    model = model_of("qwen2_vl", dtype)
    fast, fused = (
        generate(model, inputs_of(model), HEAL(preset="expected", path=path, heads="all"), new=2)
        for path in ("fast", "fused")
    )
    for name in ("visual", "language", "total"):
        assert_close(fast.stacked(name)[:, 0].double(), fused.stacked(name)[:, 0].double(), rtol=0, atol=1e-2)
    assert fused.fired is not None
    assert fused.fired.changes > 0


def test_capped_scores_fall_back_to_torch_and_say_so_once():
    model = zoo.build("paligemma2", **SMALL).to(DEVICE)
    batch = inputs_of(model)
    with (
        pytest.warns(HealWarning, match="capped scores") as warned,
        HEAL(preset="expected", path="fused").attach(model),
    ):
        model.generate(**batch, max_new_tokens=2)
    assert sum("path fused" in str(w.message) for w in warned) == 1


def test_the_implementation_is_recorded():
    with HEAL(preset="expected", path="fused").attach(model_of("llava")) as handle:
        assert handle.attachment.runtime.facts()["implementation"] == "fused, Triton"


# ── launches ──────────────────────────────────────────────────────────────────────────────────────────────

INTERVAL = 10
ALL: dict[str, Any] = {"heads": "all", "mad": float("inf"), "interval": INTERVAL}


def counted(layers: int, method: HEAL | None, steps: int = INTERVAL) -> list[Counts]:
    """What each step after the prompt launches, for a batch of one row."""
    model = zoo.build("qwen2_vl", **SMALL | {"num_key_value_heads": 1, "num_hidden_layers": layers}).to(DEVICE)
    batch = inputs_of(model, PADDED[:1])
    with LaunchCounter() as counter:
        handle = model.register_forward_pre_hook(lambda *_: counter.mark())
        if method is None:
            model.generate(**batch, max_new_tokens=steps + 1)
        else:
            with method.attach(model):
                model.generate(**batch, max_new_tokens=steps + 1)
        handle.remove()
        counter.mark()
    return counter.steps[2:]  # without what comes before the prompt, and the prompt


def added(layers: int) -> tuple[list[Counts], int]:
    """Steps of HEAL, and the operations of torch in an interval that the plain model does not have."""
    counted(layers, HEAL(preset="expected", path="fast", **ALL))  # noise tables are computed once, on the host
    steps, plain = counted(layers, HEAL(preset="expected", path="fused", **ALL)), Counts.total(counted(layers, None))
    ours = Counts.total(steps)
    return steps, ours.launches - ours.operations["triton"] - plain.launches


def test_a_step_is_one_launch_per_layer_and_few_other_operations():
    few, many = added(1), added(3)
    for layers, (steps, _) in ((1, few), (3, many)):
        assert [count.operations["triton"] for count in steps[:-1]] == [layers] * (INTERVAL - 1)
        assert steps[-1].operations["triton"] == 3 * layers  # a refresh measures contributions in two launches
    by_layer = (many[1] - few[1]) / 2 / INTERVAL
    by_step = few[1] / INTERVAL - by_layer
    assert by_layer <= 2
    assert by_step <= 40  # with 28 layers, fewer than 4 per layer altogether
    # between refreshes the host waits for nothing of ours
    assert not [sync.place for sync in many[0][0].syncs if not sync.place.startswith("transformers/")]


def test_a_split_context_is_two_launches_per_layer(monkeypatch):
    monkeypatch.setattr(launch, "parts_for", lambda *_: 2)
    assert [count.operations["triton"] for count in counted(2, HEAL(preset="expected", path="fused", **ALL), 2)] == [
        4,
        4,
    ]
