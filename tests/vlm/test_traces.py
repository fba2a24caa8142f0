"""Traces: measuring changes nothing, and a trace contains the measurements and their origin."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heal
from heal import HEAL, VLM, HeadType, Trace
from heal.errors import HealWarning
from heal.methods import available, create
from tests.known import known
from tests.vlm.asking import METHOD, NEW, PICTURES, PROMPTS, ask, assert_alike


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_measuring_changes_nothing(vlm: VLM, options: dict[str, Any]) -> None:
    plain, measured = ask(vlm, **options), ask(vlm, trace=True, **options)
    assert_alike(measured, plain)
    assert plain.trace is None
    assert plain.fired is None
    assert measured.fired is None
    assert np.isnan(measured.trace.beta).all()
    assert (measured.trace.total > 0).all()


@pytest.mark.parametrize("beams", [1, 3])
def test_trace_contains_the_measurements(vlm: VLM, beams: int) -> None:
    method = replace(METHOD, preset="gaussian")  # with these draws, beams of the random model change places
    answers = vlm.generate(PICTURES[:2], PROMPTS[:2], method=method, trace=True, max_new_tokens=NEW, num_beams=beams)
    inputs = vlm.inputs(PICTURES[:2], PROMPTS[:2])
    with method.attach(vlm.model, trace=True, special_ids=vlm.tokenizer.all_special_ids) as handle:
        out = vlm.model.generate(**inputs, max_new_tokens=NEW, num_beams=beams, return_dict_in_generate=True)
    records = known(handle.attachment.latest).state.records
    for row, answer in enumerate(answers):
        trace = answer.trace
        at = out.beam_indices[row].tolist() if beams > 1 else [row] * NEW
        assert list(answer.token_ids) == out.sequences[row, -NEW:].tolist() == trace.token_ids.tolist()
        assert (trace.steps, trace.layers, trace.heads) == (NEW, 6, 8)
        for name in ("visual", "language", "total", "contribution", "beta", "gamma", "types"):
            expected = np.stack([records[t].values[name][at[t]].numpy() for t in range(NEW)])
            assert np.array_equal(getattr(trace, name), expected, equal_nan=name != "types")
    if beams > 1:
        assert {r for row in out.beam_indices.tolist() for r in row} - {0, 3}


def test_trace_contains_its_origin(vlm: VLM) -> None:
    method = replace(METHOD, alpha=0.6, seed=9, layers=(1, 4), path="fast")
    answer = ask(vlm, method=method, trace=True)
    trace = answer.trace
    assert trace.text == answer.text
    assert "".join(trace.tokens) == vlm.tokenizer.decode(list(answer.token_ids))
    assert trace.refreshed.tolist() == [step % METHOD.interval == 0 for step in range(NEW)]
    facts = {"method": "heal", "model": "random", "equilibrium": 0.6, "implementation": "fast"}
    assert trace.config == {**facts, **method.options()}
    assert trace.seed == 9
    assert trace.versions["heal-mllm"] == heal.__version__
    assert trace.versions["torch"] == torch.__version__
    part = np.isin(np.arange(6), [1, 4])
    assert np.isnan(trace.visual[:, ~part]).all()
    assert not np.isnan(trace.visual[:, part]).any()
    np.testing.assert_allclose(trace.synergy, trace.total - trace.visual - trace.language, atol=1e-6)


def test_preset_is_written_into_the_trace(vlm: VLM) -> None:
    assert ask(vlm, method=HEAL(), trace=True, max_new_tokens=1).trace.config["equilibrium"] == 0.5


def test_fired_and_trace_agree(vlm: VLM) -> None:
    answer = ask(vlm, method=METHOD, trace=True)
    beta, gamma = (np.nan_to_num(getattr(answer.trace, name), nan=1.0) for name in ("beta", "gamma"))
    changed = (beta != 1) | (gamma != 1)
    assert known(answer.fired).steps == changed.any((1, 2)).sum()
    assert known(answer.fired).changes == changed.sum()
    assert known(answer.fired).sizes["beta"] == pytest.approx(np.abs(beta - 1).sum() / changed.sum(), rel=1e-5)
    assert known(answer.fired).sizes["gamma"] == pytest.approx(np.abs(gamma - 1).sum() / changed.sum(), rel=1e-5)


def test_trace_can_be_saved_and_loaded(vlm: VLM, tmp_path: Path) -> None:
    for beams in (1, 2):
        trace = ask(vlm, method=METHOD, trace=True, num_beams=beams).trace
        trace.save(tmp_path / "runs" / f"{beams}.safetensors")
        assert Trace.load(tmp_path / "runs" / f"{beams}.safetensors") == trace


def test_trace_of_text_only_has_no_measurements(vlm: VLM) -> None:
    with pytest.warns(HealWarning, match="no visual tokens"):
        answer = vlm.generate(None, PROMPTS[0], method=METHOD, trace=True, max_new_tokens=NEW)
    assert not answer.fired
    assert answer.fired.reason == "the prompt has no visual tokens, so this was the plain model"
    assert answer.token_ids == vlm.generate(None, PROMPTS[0], max_new_tokens=NEW).token_ids
    assert np.isnan(answer.trace.visual).all()
    assert (answer.trace.types == heal.HeadType.UNKNOWN).all()
    assert "".join(answer.trace.tokens) == vlm.tokenizer.decode(list(answer.token_ids))


@pytest.mark.parametrize("name", sorted(set(available()) - {"heal", "guard"}))
def test_a_trace_of_any_method_has_the_tokens(vlm: VLM, name: str, tmp_path: Path) -> None:
    """Values that a method does not measure are NaN, and types unknown."""
    answer = ask(vlm, method=create(name), trace=True)
    trace = answer.trace
    assert tuple(trace.token_ids) == answer.token_ids
    assert trace.text == answer.text
    assert trace.config["method"] == name
    assert np.isnan(trace.total).all()
    assert (trace.types == HeadType.UNKNOWN).all()
    trace.save(tmp_path / "trace.safetensors")
    assert Trace.load(tmp_path / "trace.safetensors") == trace
