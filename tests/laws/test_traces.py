"""Law: every method can be traced on every architecture. Tokens and log-probabilities are always there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heal import VLM, HeadType, Method, Trace
from heal.methods import available, create
from tests import zoo
from tests.laws.cases import CASES
from tests.laws.conftest import WINDOW
from tests.vlm.asking import NEW, PICTURES, PROMPTS
from tests.zoo_vlm import zoo_vlm

SCORES = ("visual", "language", "synergy", "total", "contribution", "beta", "gamma")
PLAIN = "plain"

every_method = pytest.mark.parametrize("method", [PLAIN, *available()])


def assert_traced(vlm: VLM, method: Method | None, path: Path, **options: Any) -> None:
    answers = vlm.generate(PICTURES[:2], PROMPTS[:2], method=method, trace=True, max_new_tokens=NEW, **options)
    text = vlm.model.config.get_text_config()
    for answer, prompt in zip(answers, PROMPTS, strict=False):
        trace = answer.trace
        assert tuple(trace.token_ids) == answer.token_ids
        np.testing.assert_array_equal(trace.logprobs, np.array(answer.logprobs, np.float32))
        assert np.isfinite(trace.logprobs).all()
        shape = (len(answer.token_ids), text.num_hidden_layers, text.num_attention_heads)
        assert all(getattr(trace, score).shape == shape for score in (*SCORES, "types"))
        if method is not None and method.name != "heal":
            assert all(np.isnan(getattr(trace, score)).all() for score in SCORES)
            assert (trace.types == HeadType.UNKNOWN).all()
        else:
            assert np.isfinite(trace.visual).any()
        assert prompt in trace.prompt
        assert trace.prompt_tokens == answer.prompt_tokens
        assert {span.image for span in trace.visual_positions} == {0}
        assert [(image.width, image.height) for image in trace.images] == [
            PICTURES[PROMPTS.index(prompt)].shape[1::-1]
        ]
        trace.save(path)
        assert Trace.load(path) == trace


@pytest.mark.parametrize("name", [*zoo.NAMES, WINDOW])
@every_method
def test_a_trace_of_every_method(name: str, method: str, tmp_path: Path) -> None:
    chosen = None if method == PLAIN else CASES[method].active if method in CASES else create(method)
    assert_traced(zoo_vlm(name), chosen, tmp_path / "trace")


@every_method
def test_a_trace_of_every_method_with_beams(method: str, tmp_path: Path) -> None:
    options = {} if method == "beam" else {"num_beams": 3}  # beam search sets its own number
    chosen = None if method == PLAIN else CASES["guard"].active if method == "guard" else create(method)
    assert_traced(VLM.random(), chosen, tmp_path / "trace", **options)
