"""Every method can be traced: tokens and log-probabilities are always there, and the sizes agree."""

from typing import Any

import numpy as np
import pytest

from heal import VLM, HeadType, Trace
from heal.methods import available, create
from tests.vlm.asking import NEW, PICTURES, PROMPTS

SCORES = ("visual", "language", "synergy", "total", "contribution", "beta", "gamma")


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.random()


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", [None, *available()])
def test_a_trace_of_every_method(vlm: VLM, name: str | None, options: dict[str, Any], tmp_path: Any) -> None:
    method = None if name is None else create(name)
    if name == "beam":
        options = {}  # it sets its own number of beams
    answers = vlm.generate(PICTURES[:2], PROMPTS[:2], method=method, trace=True, max_new_tokens=NEW, **options)
    for answer, prompt in zip(answers, PROMPTS, strict=False):
        trace = answer.trace
        assert tuple(trace.token_ids) == answer.token_ids
        np.testing.assert_array_equal(trace.logprobs, np.array(answer.logprobs, np.float32))
        assert np.isfinite(trace.logprobs).all()
        shape = (len(answer.token_ids), 6, 8)
        assert all(getattr(trace, score).shape == shape for score in (*SCORES, "types"))
        if name not in (None, "heal"):
            assert all(np.isnan(getattr(trace, score)).all() for score in SCORES)
            assert (trace.types == HeadType.UNKNOWN).all()
        assert prompt in trace.prompt
        assert trace.prompt_tokens == answer.prompt_tokens
        assert [span.image for span in trace.visual_positions] == [0]
        trace.save(tmp_path / "trace")
        assert Trace.load(tmp_path / "trace") == trace
