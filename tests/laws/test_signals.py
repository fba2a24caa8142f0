"""Laws of the signals in a trace: visual attention, similarity, and equal values alone, in a batch and in beams."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from heal import HEAL, VLM
from heal.analysis.split import VISUAL
from heal.engine.attention_call import AttentionCall
from heal.engine.runtime import Runtime
from heal.engine.state import State, StepRecord
from heal.methods.base import Method
from tests import zoo
from tests.laws.conftest import EVERY, NEW, ROWS, Run, generate, inputs_of, model_of, run
from tests.laws.heal_cases import EXPECTED, MEASURE, NOISY
from tests.vlm.asking import PICTURES, PROMPTS
from tests.zoo_vlm import zoo_vlm

SIGNALS = ("visual_attention", "entropy", "margin", "similarity", "agreement", "logprobs")
PLAIN = HEAL(interval=2, calibrate=False)
REFERENCE = HEAL(interval=2, calibrate=False, path="reference")

every_model = pytest.mark.parametrize("name", EVERY)


class Weights(Method):
    """Records the attention weights on visual positions, from whole rows of weights."""

    name = "weights"

    def runtime(self, layout: Any, trace: bool) -> Runtime[State]:
        return WeightsRuntime(len(layout.layers))


class WeightsRuntime(Runtime[State]):
    def __init__(self, layers: int) -> None:
        self.layers, self.found = layers, list[Tensor]()

    def attention(self, generation: Any, call: AttentionCall, plain: Any) -> Tensor:
        visual = (call.groups == VISUAL)[:, None]
        self.found.append((call.weights(slice(-1, None))[:, :, 0] * visual).sum(-1))
        return plain()

    def after_pass(self, generation: Any) -> None:
        generation.state.records.append(StepRecord({"visual_attention": torch.stack(self.found, 1)}))
        self.found.clear()


def similarities(found: Run) -> Tensor:
    return torch.stack([record.similarity for record in found.records], 1)


@every_model
def test_visual_attention_is_the_sum_of_the_weights(name: str) -> None:
    expected = run(name, Weights()).stacked("visual_attention")
    for method in (PLAIN, REFERENCE, MEASURE):
        assert_close(run(name, method).stacked("visual_attention"), expected, atol=2e-5, rtol=0)
    assert (expected[3] == 0).all()  # a row without an image
    if name != "gemma3_window":  # the window may have left the image behind
        assert (expected[:3] > 0).all()


@every_model
@pytest.mark.parametrize("method", [PLAIN, EXPECTED], ids=["measured", "calibrated"])
def test_a_row_alone_has_the_signals_of_its_batch(name: str, method: HEAL) -> None:
    batch = run(name, method)
    alone = generate(model_of(name), inputs_of(name, ROWS[1:2]), method)
    assert_close(similarities(alone), similarities(batch)[1:2], atol=1e-4, rtol=0)
    assert_close(alone.stacked("visual_attention"), batch.stacked("visual_attention")[1:2], atol=1e-4, rtol=0)
    assert similarities(batch)[3].isnan().all()  # no image, nothing to compare with
    assert similarities(batch)[:3].isfinite().all()


@pytest.mark.parametrize("name", zoo.NAMES)
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 5}], ids=["greedy", "beams", "sampled"]
)
def test_a_trace_has_all_signals(name: str, options: dict[str, Any]) -> None:
    vlm = zoo_vlm(name)
    for answer in vlm.generate(PICTURES[:2], PROMPTS[:2], trace=True, max_new_tokens=NEW, **options):
        assert all(np.isfinite(getattr(answer.trace, signal)).all() for signal in SIGNALS)
        assert (answer.trace.entropy >= 0).all()
        assert ((answer.trace.margin >= 0) & (answer.trace.margin <= 1)).all()
        assert (np.abs(answer.trace.agreement) <= 1 + 1e-5).all()


def test_a_batch_with_padding_gives_the_signals_of_each_prompt_alone() -> None:
    vlm = VLM.random()
    together = vlm.generate(PICTURES, PROMPTS, trace=True, max_new_tokens=NEW, do_sample=False)
    for picture, prompt, batch in zip(PICTURES, PROMPTS, together, strict=True):
        alone = vlm.generate(picture, prompt, trace=True, max_new_tokens=NEW, do_sample=False)
        assert alone.token_ids == batch.token_ids
        for signal in SIGNALS:
            np.testing.assert_allclose(getattr(alone.trace, signal), getattr(batch.trace, signal), atol=1e-4)


def test_beams_have_the_signals_of_a_greedy_answer_with_the_same_tokens() -> None:
    """One beam and three: the rows of a beam search move, the signals follow their tokens."""
    vlm = VLM.random()
    found = vlm.generate(PICTURES[0], PROMPTS[0], trace=True, max_new_tokens=NEW, num_beams=3)
    inputs = vlm.inputs([PICTURES[0]], [PROMPTS[0]])
    ids = torch.tensor([found.token_ids])
    with torch.no_grad():
        whole = {**inputs, "input_ids": torch.cat([inputs["input_ids"], ids], 1)}
        whole["attention_mask"] = torch.ones_like(whole["input_ids"])
        logits = vlm.model(**whole).logits[0, -len(found.token_ids) - 1 : -1].log_softmax(-1)
    entropy = -(logits.exp() * logits).sum(-1)
    np.testing.assert_allclose(found.trace.entropy, entropy, atol=1e-4)
    best = logits.exp().topk(2).values
    np.testing.assert_allclose(found.trace.margin, best[:, 0] - best[:, 1], atol=1e-4)


def test_drawn_noise_does_not_touch_the_signals() -> None:
    one, other = run("llava", MEASURE), run("llava", HEAL(interval=2, calibrate=False, preset="gaussian", seed=7))
    assert_close(similarities(one), similarities(other), equal_nan=True)
    assert torch.equal(one.stacked("visual_attention"), other.stacked("visual_attention"))


def test_without_a_trace_nothing_is_compared() -> None:
    assert run("llava", NOISY, trace=False).records == ()
