"""Streaming: a generation in its own thread, and the stream that reads it."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heal.engine.locks import lock_of
from heal.errors import ClosedError, ConfigError
from heal.generate import Answer, Traced, generate
from heal.live import Live, SoFar
from heal.methods.base import Method
from heal.request import Request

if TYPE_CHECKING:
    from heal.vlm import VLM

CLOSING = 30.0
"""Seconds to wait for the last token when a stream is closed. A running pass cannot be interrupted."""


class _Job:
    """A generation in its own thread. It holds no reference to its stream, so the stream can be garbage-collected."""

    def __init__(self, vlm: VLM, request: Request, method: Method | None, trace: Traced, **options: Any) -> None:
        from transformers import StoppingCriteriaList, TextIteratorStreamer

        self.streamer = TextIteratorStreamer(vlm.tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.live = Live(vlm.tokenizer, self.streamer) if options.pop("live", False) else None
        self.stop = threading.Event()
        self.answers: list[Answer] = []
        self.error: BaseException | None = None
        self._vlm, self._request, self._method, self._trace = vlm, request, method, trace
        own = options.pop("stopping_criteria", None) or ()
        self._options = options | {
            "streamer": self.live or self.streamer,
            "live": self.live,
            "stopping_criteria": StoppingCriteriaList([*own, self._stopped]),
        }
        # the interpreter does not wait for this thread: `_finish_all` ends the job at exit instead
        self.thread = threading.Thread(target=self._work, name="heal-stream", daemon=True)

    def start(self, timeout: float | None) -> None:
        """Start the thread. If this thread holds the model's session (a method is attached), the job joins it."""
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
                self.answers = generate(self._vlm, self._request, self._method, self._trace, **self._options)
        except BaseException as error:  # raised again in the reader's thread
            self.error = error
        finally:
            lock.dismiss(threading.get_ident())
            self.streamer.end()

    def _stopped(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), self.stop.is_set(), dtype=torch.bool, device=input_ids.device)

    def finish(self) -> None:
        """Stop after the current token, and wait for it."""
        self.stop.set()
        if threading.current_thread() is not self.thread and self.thread.ident is not None:
            self.thread.join(CLOSING)


_jobs: weakref.WeakSet[_Job] = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    """Stop all jobs. A thread that computes at interpreter exit would abort the process."""
    for job in list(_jobs):
        job.stop.set()
    for job in list(_jobs):
        job.finish()


class Stream:
    """Pieces of an answer while it is generated. Iterate over it, then read `answer`.

    The model is in use until the answer is complete. `close()`, the end of a `with` block, garbage collection and
    the end of the program all stop the generation after the current token.
    """

    def __init__(
        self,
        vlm: VLM,
        request: Request,
        method: Method | None,
        trace: Traced,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        self._job = _Job(vlm, request, method, trace, **options)
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
        """Stop after the current token. The answer contains the text so far, with finish = "closed"."""
        self._job.finish()

    @property
    def so_far(self) -> SoFar:
        """The answer so far, with what was measured at its tokens. Only for streams with `live`."""
        if self._job.live is None:
            raise ConfigError("this stream does not follow its measurements: create it with live=True")
        return self._job.live.so_far

    @property
    def _closed(self) -> bool:
        return self._job.stop.is_set()

    @property
    def answer(self) -> Answer:
        """The complete answer. Waits until it is generated."""
        job = self._job
        job.thread.join()
        if job.answers:
            answer = job.answers[0]
            return replace(answer, finish="closed") if self._closed and answer.finish == "length" else answer
        if self._closed:
            raise ClosedError("the stream was closed before its first token: there is no answer") from job.error
        assert job.error is not None
        raise job.error
