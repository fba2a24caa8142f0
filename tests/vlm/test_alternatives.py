"""The likeliest other tokens in a trace, compared with the logits of a plain forward pass."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heal import VLM, Answer
from heal.analysis.alternatives import ALTERNATIVES
from heal.methods import HEAL, OPERA, Guard
from tests.vlm.asking import NEW, PICTURES, PROMPTS, ask

pytestmark = pytest.mark.slow


def plain_logprobs(vlm: VLM, answer: Answer, prompt: int) -> Tensor:
    """The distributions of the tokens of an answer, [steps, vocabulary], from one pass over all of them."""
    inputs = vlm.inputs([PICTURES[prompt]], [PROMPTS[prompt]])
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer.token_ids])], 1)
    with torch.no_grad():
        out = vlm.model(**inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    steps = len(answer.token_ids)
    return out.logits[0, -steps - 1 : -1].log_softmax(-1)


def check(vlm: VLM, answer: Answer, prompt: int = 0) -> None:
    trace = answer.trace
    assert trace is not None
    expected = plain_logprobs(vlm, answer, prompt)
    expected[torch.arange(len(expected)), torch.tensor(answer.token_ids)] = -torch.inf
    best = expected.topk(ALTERNATIVES, dim=-1)
    np.testing.assert_allclose(trace.alternative_logprobs, best.values.numpy(), atol=1e-4)
    assert trace.alternatives.tolist() == best.indices.tolist()
    # a token is never its own alternative, and its text is what it would add
    assert not (trace.alternatives == trace.token_ids[:, None]).any()
    last, text = trace.steps - 1, "".join(trace.tokens[:-1])
    for token, piece in zip(trace.alternatives[last], trace.alternative_tokens[last], strict=True):
        assert text + piece == vlm.tokenizer.decode([*answer.token_ids[:last], int(token)])


@pytest.mark.filterwarnings("ignore:nothing was changed")
@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": True},
        {"do_sample": False, "num_beams": 3},
        {"do_sample": False, "method": HEAL(calibrate=False)},
        {"do_sample": False, "method": OPERA(alpha=0.0)},
        {"do_sample": False, "method": Guard(action="mark", risk="random", threshold=0.5)},
        {"do_sample": False, "method": Guard(action="retry", risk="random", threshold=1.0)},
    ],
    ids=["greedy", "sampling", "beams", "measured", "search", "guard", "roll-back"],
)
def test_they_are_the_likeliest_other_tokens_of_a_plain_pass(options: dict[str, Any]) -> None:
    vlm = VLM.random()
    torch.manual_seed(0)
    check(vlm, ask(vlm, trace=True, **options))


def test_every_row_of_a_batch_has_its_own() -> None:
    vlm = VLM.random()
    for row, answer in enumerate(vlm.generate(PICTURES, PROMPTS, trace=True, max_new_tokens=NEW, do_sample=False)):
        check(vlm, answer, row)


def test_a_calibrated_answer_has_those_of_the_calibrated_distributions() -> None:
    vlm = VLM.random()
    answer = ask(vlm, method=HEAL(alpha=0.3, interval=2), trace=True, do_sample=False)
    top = np.exp(answer.trace.alternative_logprobs[:, 0])
    np.testing.assert_allclose(np.exp(answer.logprobs) - top, answer.trace.margin, atol=1e-5)
