"""HEAL gives the same results for a row alone and in a padded batch, with beams and with samples."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from heal import HEAL
from heal.analysis.counterfactual import Attended
from heal.analysis.moments import Moments
from heal.methods.heal_runtime import HealRuntime
from tests import zoo
from tests.laws.conftest import NEW, ROWS, WINDOW, Run, generate, inputs_of, model_of, rows_of, run
from tests.laws.heal_cases import BEAMS, MIXED, NOISY, SAMPLES, ZERO, assert_fired, assert_logits, every_model
from tests.zoo import Row


def assert_row_alone(name: str, method: HEAL, rows: tuple[Row, ...], **options: Any) -> None:
    batch = run(name, method, rows, **options)
    copies = len(batch.logits) // len(rows)
    for index, row in enumerate(rows):
        alone, own = run(name, method, (row,), **options), slice(index * copies, (index + 1) * copies)
        assert torch.equal(alone.tokens, batch.tokens[own])
        assert_logits(alone.logits, batch.logits[own])
        assert_fired(alone, batch, own)


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
    """A single row that is forced to generate these tokens."""
    batch = inputs_of(name, (row,))
    prompt = batch["input_ids"].shape[1]
    given: dict[str, Any] = {"prefix_allowed_tokens_fn": lambda _, ids: [tokens[len(ids) - prompt]]}
    return generate(model_of(name), batch, NOISY, new=len(tokens), **given)


def moving_beams(name: str) -> tuple[Run, int]:
    """A search in which beams change rows, and the answer whose beam did so most often."""
    hot: dict[str, Any] = {"do_sample": True, "temperature": 50.0, "suppress_tokens": [*range(zoo.IMAGE, zoo.VOCAB)]}
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
    """Every token of an answer has the same logits as in the same answer without beams."""
    beams, index = moving_beams(name)
    steps = list(enumerate(beams.output.beam_indices[index].tolist()))
    alone = forced(name, MIXED[0], beams.tokens[index].tolist())
    assert_logits(alone.logits[0], torch.stack([beams.logits[place, step] for step, place in steps]))
    types = torch.stack([beams.records[step].values["types"][place] for step, place in steps])
    assert torch.equal(alone.stacked("types")[0], types)


@every_model
def test_beams_of_both_paths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero masking uses only the count, so all moments are checked at every step."""
    reference = generate(model_of(name), inputs_of(name, MIXED), replace(ZERO, path="reference"), **BEAMS)
    steps, original = [], HealRuntime._scores

    def check(self: HealRuntime, generation: Any, layer: int, at: Attended, moments: Moments) -> Tensor:
        fresh = Moments.of(at.key, at.value, at.regions)
        assert torch.equal(moments.count, fresh.count)
        assert_close(moments.mean, fresh.mean, atol=1e-5, rtol=1e-4)
        assert_close(moments.squared, fresh.squared, atol=1e-4, rtol=1e-4)
        steps.append(generation.step)
        return original(self, generation, layer, at, moments)

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
