"""HEAL with neutral options equals the plain model, and the model is restored."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from heal import HeadType
from heal.analysis.taxonomy import HeadMap
from heal.errors import HealWarning
from heal.methods import heal_runtime
from tests.known import known
from tests.laws.conftest import NEW, ROWS, WINDOW, build, footprint, generate, inputs_of, model_of, run
from tests.laws.heal_cases import BEAMS, MEASURE, MIXED, NOISY, assert_plain, at_equilibrium, every_model
from tests.zoo import Row

SYNERGY = int(HeadType.SYNERGY)
TEXT = (Row(images=0), Row(text_before=7, images=0, salt=1))

greedy_and_beams = pytest.mark.parametrize(("rows", "options"), [(ROWS, {}), (MIXED, BEAMS)], ids=["greedy", "beams"])


# ── neutral options ────────────────────────────────────────────────────────

real_classify = heal_runtime.classify


def without_synergy(*args: Any) -> HeadMap:
    types = real_classify(*args).types
    return HeadMap(types.masked_fill(types == SYNERGY, int(HeadType.VISUAL)))


@every_model
def test_heads_at_the_equilibrium_equal_the_plain_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heal_runtime, "joint_factors", at_equilibrium)
    out = generate(model_of(name), inputs_of(name, ROWS), NOISY)
    assert (out.stacked("types")[0] == SYNERGY).any(-1).any(-1).all()
    assert_plain(out, run(name))


@every_model
def test_no_synergy_heads_equal_the_plain_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heal_runtime, "classify", without_synergy)
    out = generate(model_of(name), inputs_of(name, ROWS), NOISY)
    assert_plain(out, run(name))
    assert not out.fired
    assert known(out.fired).reason == "no head was typed synergy"


@every_model
def test_factors_limited_to_one_equal_the_plain_model(name: str) -> None:
    out = run(name, replace(NOISY, factor_limit=1.0))
    assert_plain(out, run(name))
    assert (out.stacked("types") == SYNERGY).any()
    assert not out.fired
    assert "equilibrium" in known(known(out.fired).reason)


@every_model
@greedy_and_beams
def test_measuring_only_equals_the_plain_model_exactly(
    name: str, rows: tuple[Row, ...], options: dict[str, int]
) -> None:
    plain, out = (run(name, method, rows, **options) for method in (None, MEASURE))
    assert torch.equal(out.logits, plain.logits)
    assert torch.equal(out.output.sequences, plain.output.sequences)
    assert out.stacked("visual").isfinite().all()
    assert out.stacked("beta").isnan().all()


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", WINDOW])
def test_tracing_changes_nothing(name: str) -> None:
    """Without a trace, layers without calibrated heads are not measured between refreshes."""
    for layers in (None, (1,)):
        method = replace(NOISY, layers=layers)
        assert torch.equal(run(name, method, trace=False).logits, run(name, method).logits)


@every_model
def test_image_at_the_end_of_the_prompt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repeated position is a visual one."""
    monkeypatch.setattr(heal_runtime, "joint_factors", at_equilibrium)
    batch = inputs_of(name, (Row(text_after=0), Row(text_before=7, text_after=0, salt=1)))
    assert_plain(generate(model_of(name), batch, NOISY, new=2), generate(model_of(name), batch, new=2))


# ── text only, and restored state ──────────────────────────────────────────


@every_model
def test_text_only_equals_the_plain_model_and_warns_once(name: str) -> None:
    model, batch = model_of(name), inputs_of(name, TEXT)
    options = {"max_new_tokens": NEW, "output_logits": True, "return_dict_in_generate": True}
    with warnings.catch_warnings(record=True) as caught, NOISY.attach(model) as handle:
        warnings.simplefilter("always")
        outputs = [model.generate(**batch, **options) for _ in range(2)]
    for out in outputs:
        assert torch.equal(torch.stack(out.logits, 1), run(name, rows=TEXT).logits)
    assert len([warning for warning in caught if issubclass(warning.category, HealWarning)]) == 1
    assert handle.fired.changes == handle.fired.steps == 0
    assert "no visual tokens" in known(handle.fired.reason)


@every_model
def test_nothing_is_left_behind(name: str) -> None:
    model, batch = build(name), inputs_of(name, ROWS)
    plain, before = generate(model, batch), footprint(model)  # the library adds its own hooks at first use
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
