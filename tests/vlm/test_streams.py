"""Streams: the same answer piece by piece, and errors that reach its reader."""

import pytest
import transformers as hf
from torch import Tensor

from heal import HEAL, VLM
from heal.errors import ConfigError
from tests.vlm.asking import METHOD, NEW, PICTURES, PROMPTS, ask, assert_alike


@pytest.mark.parametrize("method", [None, METHOD], ids=["plain", "heal"])
def test_stream(vlm: VLM, method: HEAL | None) -> None:
    whole = ask(vlm, method=method, trace=True)
    stream = ask(vlm, method=method, trace=True, stream=True)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert len([piece for piece in pieces if piece]) == NEW
    assert_alike(stream.answer, whole)
    assert stream.answer.fired == whole.fired
    assert stream.answer.trace == whole.trace


def test_answer_of_a_stream_needs_no_reading(vlm: VLM) -> None:
    assert_alike(ask(vlm, stream=True).answer, ask(vlm))


class Fails(hf.LogitsProcessor):
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyError("on purpose")
        return scores


@pytest.mark.parametrize("after", [0, 3])
def test_error_reaches_the_reader_of_a_stream(vlm: VLM, after: int) -> None:
    stream = ask(vlm, stream=True, method=METHOD, logits_processor=[Fails(after)])
    pieces = []
    with pytest.raises(KeyError, match="on purpose"):
        pieces.extend(iter(stream))
    with pytest.raises(KeyError, match="on purpose"):
        _ = stream.answer
    assert ask(vlm, method=METHOD).fired


def test_what_a_stream_cannot_do(vlm: VLM) -> None:
    with pytest.raises(ConfigError, match="a stream is for one prompt"):
        vlm.generate(PICTURES[:2], PROMPTS[:2], stream=True)
    with pytest.raises(ConfigError, match="use seed with stream=False"):
        ask(vlm, stream=True, seed=1)
    with pytest.raises(ValueError, match="beam"):
        list(ask(vlm, stream=True, num_beams=2))
