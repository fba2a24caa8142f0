"""From images and prompts to answers: batches, streams, log-probabilities, time and proof of effect."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from heal.engine.calls import is_compiled
from heal.engine.decoding import check_values
from heal.engine.locks import lock_of
from heal.errors import ClosedError, ConfigError, HealError, NonFiniteError, first_line
from heal.methods.base import Fired, Handle, Method
from heal.methods.heal import HEAL
from heal.trace import Trace
from heal.tracing import build_trace

if TYPE_CHECKING:
    from heal.vlm import VLM

MAX_NEW_TOKENS = 512
CLOSING = 30.0
"""Seconds that closing a stream waits for its last token: a pass under way cannot be interrupted."""

Finish = Literal["stop", "length", "closed"]
"""The model ended its answer, the answer was cut at max_new_tokens, or its stream was closed."""


@dataclass(frozen=True)
class Answer:
    """What a model said, how sure it was, how long it took, and whether the method did anything."""

    text: str
    token_ids: tuple[int, ...]
    """With the closing token, if the model stopped by itself."""
    logprobs: tuple[float, ...]
    """Of each token under the model's own distribution, before temperature and other processors."""
    finish: Finish
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
    """Watches a model's forward passes in this thread: log-probabilities of the chosen tokens, and the clock."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.thread = threading.get_ident()
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

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is None or threading.get_ident() != self.thread:
            return  # a plain pass of another thread
        ids = kwargs.get("input_ids")
        if self.last is not None and ids is not None and ids.shape[0] == self.last.shape[0]:
            # without a cache the whole sequence comes again: the newest token is its last
            self.chosen.append(self.last.gather(1, ids[:, -1:].to(self.last.device))[:, 0])

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() != self.thread:
            return
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
    """One answer for each row that generate() returns. The caller has the model's lock."""
    check_values(options)
    if vlm.option("max_new_tokens", options) is None and "max_length" not in options:
        options["max_new_tokens"] = MAX_NEW_TOKENS
    if clash := sorted(set(options) & set(inputs)):
        raise ConfigError(f"{clash[0]} is made from the images and prompts: leave it out")
    asked = method
    options |= method.generate_options() if method is not None else {}
    if trace and method is None:
        method = HEAL(calibrate=False)
    # beams move between rows, and a compiled model may not call hooks: then the logits of all steps are kept
    whole = vlm.option("num_beams", options) not in (None, 1) or is_compiled(vlm.model)
    recorder = _Recorder(vlm.model)
    attach = (
        nullcontext()
        if method is None
        else method.attach(vlm.model, trace=trace, special_ids=vlm.tokenizer.all_special_ids)
    )
    with attach as handle, recorder.watching(), _clear_refusals(recorder):
        output = vlm.model.generate(
            **inputs, **options, return_dict_in_generate=True, **({"output_logits": True} if whole else {})
        )
    seconds = time.perf_counter() - recorder.start
    closing = vlm.option("eos_token_id", options)
    return [
        _answer(vlm, inputs, output, row, recorder, handle, method, trace, seconds, asked is not None, closing)
        for row in range(output.sequences.shape[0])
    ]


@contextmanager
def _clear_refusals(recorder: _Recorder) -> Iterator[None]:
    """What transformers refuses before the first token, as an error of ours. A RuntimeError is no refusal."""
    try:
        yield
    except HealError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        if recorder.first:
            raise
        raise ConfigError(
            f"generate() failed before the first token: {first_line(error)}. Check the options, and that the "
            "processor belongs to the model"
        ) from error


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
    if getattr(output, "logits", None) is not None:
        logprobs = tuple(float(output.logits[t][r].float().log_softmax(-1)[ids[t]]) for t, r in enumerate(at))
    else:
        logprobs = recorder.logprobs(row, ids)
    if len(logprobs) != len(ids):
        raise HealError(f"{len(ids)} tokens but {len(logprobs)} log-probabilities: the model did not call its hooks")
    source = row * inputs["input_ids"].shape[0] // output.sequences.shape[0]
    return Answer(
        text=vlm.tokenizer.decode(ids, skip_special_tokens=True).strip(),
        token_ids=tuple(ids),
        logprobs=logprobs,
        finish=finish,
        prompt_tokens=int(inputs["attention_mask"][source].sum()),
        seconds=seconds,
        first_token_seconds=recorder.first - recorder.start,
        fired=handle.row(at, ids) if handle is not None and proof else None,
        trace=build_trace(vlm, handle, method, ids, at) if trace and handle and method else None,
    )


def _own_tokens(closing: Any, ids: list[int]) -> tuple[list[int], Finish]:
    """Without the padding behind the closing token."""
    last = set(closing) if isinstance(closing, (list, tuple)) else {closing}
    for at, token in enumerate(ids):
        if token in last:
            return ids[: at + 1], "stop"
    return ids, "length"


class _Job:
    """A generation in a thread of its own. It knows nothing of the stream that reads it, so that can be collected."""

    def __init__(self, vlm: VLM, inputs: dict[str, Any], method: Method | None, trace: bool, **options: Any) -> None:
        from transformers import StoppingCriteriaList, TextIteratorStreamer

        self.streamer = TextIteratorStreamer(vlm.tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.stop = threading.Event()
        self.answers: list[Answer] = []
        self.error: BaseException | None = None
        self._vlm, self._inputs, self._method, self._trace = vlm, inputs, method, trace
        own = options.pop("stopping_criteria", None) or ()
        self._options = options | {
            "streamer": self.streamer,
            "stopping_criteria": StoppingCriteriaList([*own, self._stopped]),
        }
        # not a thread that the interpreter waits for: it ends the job at exit instead, see `finish`
        self.thread = threading.Thread(target=self._work, name="heal-stream", daemon=True)

    def start(self, timeout: float | None) -> None:
        """If this thread has the model's session (a method is attached here), the job takes part in it."""
        lock = lock_of(self._vlm.model)
        self._timeout, self._guest = timeout, lock.mine
        ready = threading.Event()
        self._ready = ready
        self.thread.start()
        if self._guest:
            assert self.thread.ident is not None
            lock.admit(self.thread.ident)
        ready.set()

    def _work(self) -> None:
        lock = lock_of(self._vlm.model)
        self._ready.wait()
        try:
            with lock.turn(self._timeout, self.stop):
                self.answers = generate(self._vlm, self._inputs, self._method, self._trace, **self._options)
        except BaseException as error:  # carried to the reader's thread
            self.error = error
        finally:
            lock.dismiss(threading.get_ident())
            self.streamer.end()

    def _stopped(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), self.stop.is_set(), dtype=torch.bool, device=input_ids.device)

    def finish(self) -> None:
        """Stop after the token under way, and wait for it."""
        self.stop.set()
        if threading.current_thread() is not self.thread and self.thread.ident is not None:
            self.thread.join(CLOSING)


_jobs: weakref.WeakSet[_Job] = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    """A thread that computes while the interpreter ends would abort the process."""
    for job in list(_jobs):
        job.stop.set()
    for job in list(_jobs):
        job.finish()


class Stream:
    """Pieces of an answer as they are made. Iterate over it, then read `answer`.

    The model is in use until the answer is complete. `close()`, the end of a `with` block, garbage collection and
    the end of the program all stop the generation after the token under way.
    """

    def __init__(
        self,
        vlm: VLM,
        inputs: dict[str, Any],
        method: Method | None,
        trace: bool,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        self._job = _Job(vlm, inputs, method, trace, **options)
        _jobs.add(self._job)
        weakref.finalize(self, self._job.stop.set).atexit = False
        self._job.start(timeout)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        yield from self._job.streamer
        self._job.thread.join()
        if self._job.error is not None and not self._closed:
            raise self._job.error

    def close(self) -> None:
        """Stop after the token under way. What was made until then is the answer, with finish = "closed"."""
        self._job.finish()

    @property
    def _closed(self) -> bool:
        return self._job.stop.is_set()

    @property
    def answer(self) -> Answer:
        """The whole answer; waits for its end."""
        job = self._job
        job.thread.join()
        if job.answers:
            answer = job.answers[0]
            return replace(answer, finish="closed") if self._closed and answer.finish == "length" else answer
        if self._closed:
            raise ClosedError("the stream was closed before its first token: there is no answer") from job.error
        assert job.error is not None
        raise job.error
