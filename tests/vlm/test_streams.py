"""Streams: the same answer in pieces, and errors in the reader's thread."""

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import transformers as hf
from torch import Tensor

from heal import HEAL, VLM
from heal.errors import ClosedError, ConfigError
from heal.streams import Stream
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


def test_the_answer_of_a_stream_without_reading_it(vlm: VLM) -> None:
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


def test_unsupported_options_of_a_stream(vlm: VLM) -> None:
    with pytest.raises(ConfigError, match="a stream takes one prompt"):
        vlm.generate(PICTURES[:2], PROMPTS[:2], stream=True)
    with pytest.raises(ConfigError, match="use seed with stream=False"):
        ask(vlm, stream=True, seed=1)
    with pytest.raises(ValueError, match="beam"):
        list(ask(vlm, stream=True, num_beams=2))


# ── ending a stream ───────────────────────────────────────────────────────────────────────────────────────

LONG = 100_000
"""More tokens than any test waits for."""
NEVER = 1_000_000
"""An end token that no vocabulary in the tests has."""


def endless(vlm: VLM, method: HEAL | None = None) -> Stream:
    """A stream that would run for hours, with at least one piece read."""
    stream = vlm.stream(PICTURES[0], PROMPTS[0], method=method, max_new_tokens=LONG, eos_token_id=NEVER)
    assert next(iter(stream)) is not None
    return stream


def free(vlm: VLM) -> None:
    """The model can be used again: it would be busy for hours otherwise."""
    assert_alike(ask(vlm, timeout=60.0), ask(vlm))


@pytest.mark.parametrize("method", [None, METHOD], ids=["plain", "heal"])
def test_a_closed_stream_keeps_its_text(vlm: VLM, method: HEAL | None) -> None:
    stream = endless(vlm, method)
    stream.close()
    assert not stream._job.thread.is_alive()
    answer = stream.answer
    assert answer.finish == "closed"
    assert 0 < len(answer.token_ids) < LONG
    assert len(answer.logprobs) == len(answer.token_ids)
    expected = ask(vlm, method=method, max_new_tokens=len(answer.token_ids), eos_token_id=NEVER)
    assert answer.token_ids == expected.token_ids
    stream.close()  # closing again has no effect
    free(vlm)


def test_the_end_of_a_block_closes_a_stream(vlm: VLM) -> None:
    with endless(vlm) as stream:
        pass
    assert stream.answer.finish == "closed"
    free(vlm)


def test_an_unreferenced_stream_is_closed(vlm: VLM) -> None:
    stream = endless(vlm)
    thread = stream._job.thread
    del stream
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    free(vlm)


def test_a_stream_that_waits_for_the_model_can_be_closed(vlm: VLM) -> None:
    with METHOD.attach(vlm.model), ThreadPoolExecutor() as pool:
        first = endless(vlm)
        request = vlm.request([PICTURES[0]], [PROMPTS[0]])
        waiting = pool.submit(Stream, vlm, request, None, False).result(60)
        waiting.close()
        with pytest.raises(ClosedError, match="closed before its first token"):
            _ = waiting.answer
        first.close()
    free(vlm)


def test_a_stream_uses_the_method_attached_in_its_thread(vlm: VLM) -> None:
    expected = ask(vlm, method=METHOD)
    with METHOD.attach(vlm.model) as handle:
        stream = ask(vlm, stream=True)
        assert "".join(stream) == expected.text
    assert handle.fired
    with METHOD.attach(vlm.model):
        stream = ask(vlm, stream=True)  # the block waits for it
    assert stream.answer.text == expected.text
    free(vlm)


def test_a_program_can_end_during_a_stream() -> None:
    code = (
        "import numpy as np, heal\n"
        "vlm = heal.VLM.random()\n"
        "picture = np.zeros((32, 32, 3), np.uint8)\n"
        f"stream = vlm.stream(picture, 'describe', max_new_tokens={LONG}, eos_token_id={NEVER})\n"
        "print(repr(next(iter(stream))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
