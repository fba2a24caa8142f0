"""OPERA: the penalty, the search compared with a slow implementation, roll-back, streams and errors."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from heal import VLM
from heal.engine.search import Mark, Search
from heal.errors import ConfigError, UnsupportedError
from heal.methods import OPERA
from heal.methods.opera import column_scores, mode, penalty
from tests.known import known
from tests.laws.conftest import ROWS, WINDOW, generate, inputs_of, model_of, run
from tests.methods import slow_opera
from tests.zoo import Row

ONE = (Row(),)


def test_column_scores_by_hand() -> None:
    attention = torch.tensor([[[0.5, 0.0], [0.2, 0.1]]])
    expected = torch.tensor([[1e-7 * 5 * 2, 1e-7 * 1]]).double()
    assert_close(column_scores(attention, 10.0).exp(), expected, rtol=1e-5, atol=0)


def test_the_first_tokens_are_rewarded_for_attention_to_the_image() -> None:
    attention = torch.full((2, 3, 3), 0.1).tril()
    image = torch.tensor([0.3, 0.7])
    rewarded, _ = penalty(attention, image, OPERA(start=3))
    assert_close(rewarded, -image.double())
    penalised, columns = penalty(attention, image, OPERA(start=2, sigma=50.0))
    assert_close(penalised, torch.full((2,), 1e-7 * 5**3, dtype=torch.double))
    assert columns == [0, 0]


def test_long_columns_stay_finite() -> None:
    value, _ = penalty(torch.full((1, 300, 300), 0.9).tril(), torch.zeros(1), OPERA())
    assert value.isfinite().all()


def test_mode() -> None:
    assert (mode([3, 1, 3, 1]), mode([2]), mode([5, 4, 4])) == (1, 2, 4)


@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_5_vl", "qwen3_vl", "internvl_qwen2", "gemma3"])
def test_one_beam_without_penalty_is_greedy(name: str) -> None:
    out, plain = run(name, OPERA(beams=1, alpha=0.0, rollback=None), ONE), run(name, None, ONE)
    assert torch.equal(out.logits, plain.logits)
    assert torch.equal(out.tokens, plain.tokens)
    assert not out.fired
    assert known(out.fired).reason


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3", WINDOW])
@pytest.mark.parametrize("rollback", [None, 1])
def test_agrees_with_the_slow_implementation(name: str, rollback: int | None) -> None:
    method = OPERA(beams=2, candidates=3, start=0, rollback=rollback, sigma=300.0, alpha=2.0)
    batch = inputs_of(name, ONE)
    out = generate(model_of(name), batch, method, new=9)
    expected, back = slow_opera.opera(model_of(name), batch, 9, method)
    assert out.tokens[0].tolist() == expected
    assert (back > 0) == (rollback is not None)


def test_roll_back_restores_and_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []
    original = Search.restore

    def restore(self: Search, mark: Mark) -> None:
        before = self.answer.shape[1]
        original(self, mark)
        lengths.append((before, self.answer.shape[1]))

    monkeypatch.setattr(Search, "restore", restore)
    generate(model_of("llava"), inputs_of("llava", ONE), OPERA(beams=2, start=0, sigma=300.0, rollback=1), new=12)
    assert lengths
    assert all(after < before for before, after in lengths)


def test_a_batch_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="one prompt instead of 4"):
        generate(model_of("llava"), inputs_of("llava", ROWS), OPERA())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams must be a whole number of 1 or more"),
        ({"candidates": 0}, "candidates must be a whole number of 1 or more"),
        ({"alpha": -1.0}, "alpha must be 0 or more"),
        ({"rollback": -1}, "rollback must be a whole number of 0 or more"),
        ({"length_penalty": float("inf")}, "length_penalty must be a finite number"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OPERA(**options)


def test_log_probabilities_are_those_of_the_answer_and_not_of_look_aheads() -> None:
    vlm, image = VLM.random(), np.zeros((48, 48, 3), np.uint8)
    for method in (OPERA(beams=1, candidates=2), OPERA(beams=2, candidates=2)):
        answer = vlm.generate(image, "describe", method=method, max_new_tokens=5)
        stored = vlm.generate(image, "describe", method=method, max_new_tokens=5, output_logits=True)
        request = vlm.request([image], ["describe"])
        ids = torch.cat([request.arguments["input_ids"], torch.tensor([answer.token_ids])], 1)
        arguments = {**request.arguments, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            logits = vlm.model(**arguments).logits[0, request.arguments["input_ids"].shape[1] - 1 : -1]
        expected = logits.float().log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert answer.logprobs == stored.logprobs


def test_answers_and_streams_of_the_embedded_model() -> None:
    from heal.world import World

    vlm, image = VLM.embedded(), World(0, "validation", "natural").scene(0).image
    method = OPERA(beams=2, candidates=2)
    answer = vlm.generate(image, "Describe this image.", method=method, max_new_tokens=12)
    assert len(answer.logprobs) == len(answer.token_ids) <= 12
    assert answer.text
    stream = vlm.stream(image, "Describe this image.", method=method, max_new_tokens=12)
    assert "".join(stream).strip() == answer.text
    assert stream.answer.token_ids == answer.token_ids
