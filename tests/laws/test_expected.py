"""HEAL with expected noise: the same in every implementation, for every seed, and in every batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from heal import HEAL
from heal.errors import HealWarning
from tests.laws.conftest import ROWS, WINDOW, generate, inputs_of, model_of, run
from tests.laws.heal_cases import (
    BEAMS,
    EXPECTED,
    MIXED,
    NOISY,
    SEES,
    assert_fired,
    assert_logits,
    every_model,
    moved,
)
from tests.laws.test_rows import assert_row_alone

FAST = replace(EXPECTED, path="fast")


@every_model
def test_fused_equals_fast_equals_reference(name: str) -> None:
    """In logits, head types and factors, in a padded batch with several images and a row of text only."""
    reference = run(name, replace(EXPECTED, path="reference"))
    for path in ("fast", "auto"):
        out = run(name, replace(EXPECTED, path=path))
        assert torch.equal(out.tokens, reference.tokens)
        assert_logits(out.logits, reference.logits)
        seeing = torch.tensor(SEES)
        for value in ("visual", "language", "total", "beta", "gamma"):
            one, other = out.stacked(value)[seeing], reference.stacked(value)[seeing]
            torch.testing.assert_close(one.float(), other.float(), atol=2e-4, rtol=2e-3, equal_nan=True)
        assert torch.equal(out.stacked("types")[seeing], reference.stacked("types")[seeing])
        assert_fired(out, reference, slice(None))


@pytest.mark.slow
@every_model
def test_the_seed_does_not_matter(name: str) -> None:
    other = generate(model_of(name), inputs_of(name, ROWS), replace(EXPECTED, seed=99))
    assert torch.equal(other.logits, run(name, EXPECTED).logits)


@pytest.mark.slow
@every_model
def test_a_row_alone_equals_the_row_in_a_padded_batch(name: str) -> None:
    assert_row_alone(name, EXPECTED, ROWS)


@pytest.mark.slow
@every_model
def test_beams(name: str) -> None:
    fast, fused = (generate(model_of(name), inputs_of(name, MIXED), m, **BEAMS) for m in (FAST, EXPECTED))
    assert torch.equal(fast.tokens, fused.tokens)
    assert_logits(fast.logits, fused.logits)


@pytest.mark.parametrize(
    "options",
    [
        {"sinks": "neutral"},
        {"measure": "l2"},
        {"measure": "cosine+l2"},
        {"covariance": "full"},
        {"drift": "language"},
        {"factor_limit": 3.0},
        {"layers": (1,)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["llava", "qwen2_vl", WINDOW])
def test_options(name: str, options: dict[str, Any]) -> None:
    runs = [run(name, replace(EXPECTED, alpha=0.6, path=path, **options)) for path in ("reference", "fast", "auto")]
    for out in runs[1:]:
        assert_logits(out.logits, runs[0].logits)


def test_it_does_something() -> None:
    assert ((moved(run("llava", EXPECTED), run("llava")) > 1e-4).tolist()) == SEES


def test_the_path_is_recorded_and_a_fallback_is_told_once() -> None:
    pytest.importorskip("numba")
    model, drawn = model_of("llava"), replace(EXPECTED, path="fused", masking="gaussian")
    with (
        pytest.warns(HealWarning, match="path fused is not used, fast is: gaussian masking") as warned,
        drawn.attach(model) as handle,
    ):
        assert handle.runtime.facts()["implementation"] == "fast"
    assert len([w for w in warned if "fused" in str(w.message)]) == 1
    found = {
        EXPECTED: "fused, Numba",
        FAST: "fast",
        replace(EXPECTED, path="reference"): "reference",
        NOISY: "fast",
    }
    for method, implementation in found.items():
        with method.attach(model) as handle:
            assert handle.runtime.facts()["implementation"] == implementation


def test_presets() -> None:
    paper, ours, drawn = HEAL(preset="paper"), HEAL(), HEAL(preset="gaussian")
    assert (paper.noise, paper.replaced_by, paper.limit, paper.draws) == ("gaussian", "gaussian", None, 1)
    assert (ours.noise, ours.replaced_by, ours.limit) == ("expected", "expected", 2.0)
    assert (drawn.noise, drawn.replaced_by, drawn.limit, drawn.draws) == ("gaussian", "gaussian", 2.0, 1)
    assert HEAL(preset="paper", factor_limit=3.0).limit == 3.0
    assert replace(paper, masking="zero").noise == "zero"
