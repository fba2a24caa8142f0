"""From images and prompts to answers: batches, streams, log-probabilities, time and proof of effect."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from heal.errors import NonFiniteError
from heal.methods.base import Fired, Handle, Method
from heal.methods.heal import HEAL
from heal.trace import Trace
from heal.tracing import build_trace

if TYPE_CHECKING:
    from heal.vlm import VLM

MAX_NEW_TOKENS = 512


@dataclass(frozen=True)
class Answer:
    """What a model said, how sure it was, how long it took, and whether the method did anything."""

    text: str
    token_ids: tuple[int, ...]
    """With the closing token, if the model stopped by itself."""
    logprobs: tuple[float, ...]
    """Of each token under the model's own distribution, before temperature and other processors."""
    finish: Literal["stop", "length"]
    prompt_tokens: int
    seconds: float
    """For the whole batch that the answer was made in."""
    first_token_seconds: float
    fired: Fired | None = None
    """None when no method was used."""
    trace: Trace | None = None

    @property
    def seconds_per_token(self) -> float:
        """After the first token; NaN for an answer of one token."""
        later = len(self.token_ids) - 1
        return (self.seconds - self.first_token_seconds) / later if later else float("nan")


class _Recorder:
    """Watches a model's forward passes: log-probabilities of the chosen tokens, and the clock."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.chosen: list[Tensor] = []
        self.last: Tensor | None = None
        self.start = self.first = 0.0

    @contextmanager
    def watching(self) -> Iterator[_Recorder]:
        hooks = [
            self.model.register_forward_pre_hook(self._before, with_kwargs=True),
            self.model.register_forward_hook(self._after),
        ]
        self.start = time.perf_counter()
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids")
        if self.last is not None and ids is not None and ids.shape == (self.last.shape[0], 1):
            self.chosen.append(self.last.gather(1, ids.to(self.last.device))[:, 0])

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        logits = output.logits[:, -1].float()
        if not bool((logits < torch.inf).all()):  # −inf is how some models forbid a token
            raise NonFiniteError(
                f"the model's output is not finite at step {len(self.chosen)}: load it in bfloat16 or float32"
            )
        self.last = logits.log_softmax(-1)
        self.first = self.first or time.perf_counter()

    def logprobs(self, row: int, ids: Sequence[int]) -> tuple[float, ...]:
        """Rows stay in place without beams; the last token never comes back as an input."""
        past = [float(step[row]) for step in self.chosen[: len(ids)]]
        if len(past) < len(ids):
            assert self.last is not None
            past.append(float(self.last[row, ids[-1]]))
        return tuple(past)


def generate(vlm: VLM, inputs: dict[str, Any], method: Method | None, trace: bool, **options: Any) -> list[Answer]:
    """One answer for each row that generate() returns."""
    if vlm.option("max_new_tokens", options) is None and "max_length" not in options:
        options["max_new_tokens"] = MAX_NEW_TOKENS
    asked = method
    options |= method.generate_options() if method is not None else {}
    if trace and method is None:
        method = HEAL(calibrate=False)
    beams = vlm.option("num_beams", options) or 1
    recorder = _Recorder(vlm.model)
    attach = (
        nullcontext()
        if method is None
        else method.attach(vlm.model, trace=trace, special_ids=vlm.tokenizer.all_special_ids)
    )
    with attach as handle, recorder.watching():
        output = vlm.model.generate(
            **inputs, **options, return_dict_in_generate=True, **({"output_logits": True} if beams > 1 else {})
        )
    seconds = time.perf_counter() - recorder.start
    closing = vlm.option("eos_token_id", options)
    return [
        _answer(vlm, inputs, output, row, recorder, handle, method, trace, seconds, asked is not None, closing)
        for row in range(output.sequences.shape[0])
    ]


def _answer(
    vlm: VLM,
    inputs: dict[str, Any],
    output: Any,
    row: int,
    recorder: _Recorder,
    handle: Handle | None,
    method: Method | None,
    trace: bool,
    seconds: float,
    proof: bool,
    closing: Any,
) -> Answer:
    ids, finish = _own_tokens(closing, output.sequences[row, inputs["input_ids"].shape[1] :].tolist())
    beams = getattr(output, "beam_indices", None)
    # in which row of the batch each token was made: beams move, everything else stays
    at = beams[row, : len(ids)].tolist() if beams is not None else [row] * len(ids)
    if beams is not None:
        logprobs = tuple(float(output.logits[t][r].float().log_softmax(-1)[ids[t]]) for t, r in enumerate(at))
    else:
        logprobs = recorder.logprobs(row, ids)
    source = row * inputs["input_ids"].shape[0] // output.sequences.shape[0]
    return Answer(
        text=vlm.tokenizer.decode(ids, skip_special_tokens=True).strip(),
        token_ids=tuple(ids),
        logprobs=logprobs,
        finish=finish,
        prompt_tokens=int(inputs["attention_mask"][source].sum()),
        seconds=seconds,
        first_token_seconds=recorder.first - recorder.start,
        fired=handle.row(at) if handle is not None and proof else None,
        trace=build_trace(vlm, handle, method, ids, at) if trace and handle and method else None,
    )


def _own_tokens(closing: Any, ids: list[int]) -> tuple[list[int], Literal["stop", "length"]]:
    """Without the padding behind the closing token."""
    last = set(closing) if isinstance(closing, (list, tuple)) else {closing}
    for at, token in enumerate(ids):
        if token in last:
            return ids[: at + 1], "stop"
    return ids, "length"


class Stream:
    """Pieces of an answer as they are made; iterate over it, then read `answer`."""

    def __init__(self, vlm: VLM, inputs: dict[str, Any], method: Method | None, trace: bool, **options: Any) -> None:
        from transformers import TextIteratorStreamer

        self._streamer = TextIteratorStreamer(vlm.tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._answers: list[Answer] = []
        self._error: BaseException | None = None

        def work() -> None:
            try:
                self._answers = generate(vlm, inputs, method, trace, streamer=self._streamer, **options)
            except BaseException as error:  # carried to the reader's thread
                self._error = error
            finally:
                self._streamer.end()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[str]:
        yield from self._streamer
        self._thread.join()
        if self._error is not None:
            raise self._error

    @property
    def answer(self) -> Answer:
        """The whole answer; waits for its end."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]
