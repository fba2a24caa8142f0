"""The noise of HEAL: seeds, averaged draws, and the effect of every option."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from heal import HEAL
from heal.analysis.contribution import REPLACEMENTS
from heal.analysis.counterfactual import MASKINGS
from heal.analysis.information import MEASURES, HeadScores
from heal.methods import heal_scores
from tests.known import known
from tests.laws.conftest import HEADS, LAYERS, NEW, ROWS, Run, generate, inputs_of, model_of, run
from tests.laws.heal_cases import MEASURE, MIXED, NOISY, SAMPLES, SEES, every_model, moved

ONE = ROWS[:1]


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────


@every_model
def test_results_depend_on_the_seed_only(name: str) -> None:
    """The state of torch's generator and beam search do not matter."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = generate(model_of(name), inputs_of(name, ROWS), NOISY, num_beams=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.logits, run(name, NOISY).logits)
    assert torch.equal(again.tokens, run(name, NOISY).tokens)
    other = generate(model_of(name), inputs_of(name, ROWS), replace(NOISY, seed=1), new=1)
    assert (moved(other, again) > 1e-4).tolist() == SEES


@every_model
def test_sampling_is_not_changed_by_the_noise(name: str) -> None:
    plain, out = (run(name, method, MIXED, seed=0, **SAMPLES) for method in (None, MEASURE))
    assert torch.equal(out.tokens, plain.tokens)
    assert not torch.equal(plain.tokens, run(name, rows=MIXED, seed=1, **SAMPLES).tokens)


def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[list[HeadScores]]:
    """The draws of every measured layer before they are averaged."""
    drawn, original = list[list[HeadScores]](), heal_scores.mean_scores

    def noted(draws: list[HeadScores]) -> HeadScores:
        drawn.append(draws)
        return original(draws)

    monkeypatch.setattr(heal_scores, "mean_scores", noted)
    return drawn


@pytest.mark.usefixtures("without_type_checker")
def test_paths_agree_in_the_mean_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, draws = 20, 10
    drawn, batch = drawn_by(monkeypatch), inputs_of("llava", ONE)

    def sample(path: Any, first: int) -> np.ndarray:
        drawn.clear()
        for seed in range(first, first + seeds):
            method = replace(MEASURE, path=path, seed=seed, draws=draws)
            generate(model_of("llava"), batch, method, trace=False, new=1)
        scores = [[torch.stack([d.visual, d.language, d.total]) for d in layer] for layer in drawn]
        table = torch.stack([torch.stack(layer) for layer in scores]).unflatten(0, (seeds, LAYERS))
        return table.transpose(1, 2).reshape(seeds * draws, -1).numpy()

    fast, reference = sample("fast", 0), sample("reference", seeds)
    error = np.sqrt((fast.var(0, ddof=1) + reference.var(0, ddof=1)) / len(fast))
    z = np.abs(fast.mean(0) - reference.mean(0)) / error
    assert len(fast) == 200
    assert len(z) == 3 * LAYERS * HEADS
    assert error.max() < 0.03  # so that agreement is meaningful
    assert z.max() < stats.norm.isf(0.01 / 2 / len(z))


def test_draws_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    one, drawn = run("llava", MEASURE, new=1).records[0], drawn_by(monkeypatch)
    three = generate(model_of("llava"), inputs_of("llava", ROWS), replace(MEASURE, draws=3), new=1).records[0]
    assert [len(draws) for draws in drawn] == [3] * 2 * LAYERS  # for the types, and for the record
    for layer, name in product(range(LAYERS), ("visual", "language", "total")):
        values = torch.stack([getattr(scores, name) for scores in drawn[2 * layer + 1]])
        assert_close(three.values[name][:, layer], values.mean(0))
        assert torch.equal(values[0], one.values[name][:, layer])
        assert all((values[i] - values[j]).abs().max() > 1e-3 for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3"])
@pytest.mark.parametrize("path", ["fast", "reference"])
def test_measuring_and_calibrating_use_the_same_draws(name: str, path: Any) -> None:
    """With factors of 1 both runs are the plain model, so that the traces are comparable."""
    measured, calibrated = (
        run(name, replace(method, path=path)) for method in (MEASURE, replace(NOISY, factor_limit=1.0))
    )
    seeing = torch.tensor(SEES)
    for one, other in zip(measured.records, calibrated.records, strict=True):
        assert torch.equal(one.values["types"][seeing], other.values["types"][seeing])
        for field in ("visual", "language", "total", "contribution"):
            assert_close(one.values[field], other.values[field], rtol=0, atol=1e-5, equal_nan=True)


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────

WORLDS = [*((masking, "diagonal") for masking in MASKINGS), ("gaussian", "full")]


def with_options(world: tuple[str, str], replacement: str, measure: str) -> Run:
    masking, covariance = world
    options: dict[str, Any] = {
        "masking": masking,
        "covariance": covariance,
        "replacement": replacement,
        "measure": measure,
    }
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


def test_every_option_has_an_effect() -> None:
    """Two values of an option give different measurements."""
    worlds = [with_options(world, "gaussian", "cosine").records[0].values["visual"] for world in WORLDS]
    measures = [with_options(WORLDS[0], "gaussian", measure).records[0].values["visual"] for measure in MEASURES]
    replaced = [
        with_options(WORLDS[0], how, "cosine").records[0].values["contribution"]
        for how in REPLACEMENTS
        if how != "none"
    ]
    for values in (worlds, measures, replaced):
        assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(values) for b in values[:i])


def test_swap_with_itself_gives_no_information() -> None:
    method = replace(NOISY, masking="swap", replacement="swap", interval=1)
    same, other = (run("llava", method, rows) for rows in (ONE * 2, ROWS[:2]))
    for name in ("visual", "language", "total", "contribution"):
        assert same.stacked(name).abs().max() < 1e-6
        assert other.stacked(name).abs().max() > 1e-2
    assert known(other.fired).steps == NEW
