"""One lock per model: calls from several threads take turns, so none of them sees another's hooks or settings."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from heal.errors import BusyError, HealWarning

PATIENCE = 30.0
"""Seconds of waiting before a warning explains the wait."""
POLL = 0.05
"""Seconds between checks whether a waiting call was cancelled."""


class ModelLock:
    """Controls which thread may use a model.

    A *session* lasts as long as a method is attached or a call runs, and belongs to one thread. A *call* is one
    generation inside a session. The thread that holds a session or a call can enter it again. A session may have
    guests: threads that work for its owner, such as the producer of a stream.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._depth = 0
        self._guests: set[int] = set()
        self._caller: int | None = None
        self._calls = 0

    @property
    def mine(self) -> bool:
        """Whether the session belongs to this thread."""
        return threading.get_ident() in (self._owner, *self._guests)

    @property
    def calling(self) -> bool:
        """Whether this thread is in a call."""
        return self._caller == threading.get_ident()

    @property
    def called(self) -> bool:
        """Whether any thread is in a call."""
        return self._caller is not None

    @contextmanager
    def session(self, timeout: float | None = None, cancelled: threading.Event | None = None) -> Iterator[None]:
        """Use the model exclusively."""
        self.acquire(timeout, cancelled)
        try:
            yield
        finally:
            self.release()

    def acquire(self, timeout: float | None = None, cancelled: threading.Event | None = None) -> None:
        with self._changed:
            self._wait(lambda: self._owner is None or self.mine, timeout, cancelled)
            if self._owner is None:
                self._owner = threading.get_ident()
            self._depth += 1

    def release(self) -> None:
        """May be called from any thread, because a `with` block can end in another thread than it began in."""
        with self._changed:
            self._depth -= 1
            if self._depth == 0:
                self._owner = None
                self._guests.clear()
                self._changed.notify_all()

    @contextmanager
    def call(self, timeout: float | None = None, cancelled: threading.Event | None = None) -> Iterator[None]:
        """Run one generation. If this thread holds no session, create one for the call."""
        began = time.monotonic()
        with self.session(timeout, cancelled):
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
            with self._changed:
                self._wait(lambda: self._caller is None or self.calling, left, cancelled)
                self._caller = threading.get_ident()
                self._calls += 1
            try:
                yield
            finally:
                with self._changed:
                    self._calls -= 1
                    if self._calls == 0:
                        self._caller = None
                        self._changed.notify_all()

    @contextmanager
    def turn(self, timeout: float | None = None, cancelled: threading.Event | None = None) -> Iterator[None]:
        """Run a top-level call. A callback of a generation cannot start a second generation."""
        if self.calling:
            raise BusyError(
                "this was called inside a generation of the same model, whose state it would overwrite: call "
                "it after the generation, or use a second model"
            )
        with self.call(timeout, cancelled):
            yield

    def settle(self) -> None:
        """Wait until no other thread is in a call and no guest is about to start one."""
        with self._changed:
            me = {threading.get_ident()}
            self._wait(lambda: {self._caller, *self._guests} - me <= {None}, None, None)

    def admit(self, thread: int) -> None:
        """Let a thread work for the owner of the session, until the session ends."""
        with self._changed:
            self._guests.add(thread)
            self._changed.notify_all()

    def dismiss(self, thread: int) -> None:
        """Remove a finished guest, because a later thread may have the same id."""
        with self._changed:
            self._guests.discard(thread)
            self._changed.notify_all()

    def _wait(self, free: Callable[[], bool], timeout: float | None, cancelled: threading.Event | None) -> None:
        """Wait until the model is free. The caller holds the condition, which is released while waiting."""
        began, warned = time.monotonic(), False
        while not free():
            waited = time.monotonic() - began
            if cancelled is not None and cancelled.is_set():
                raise BusyError("the call was cancelled while it waited for the model")
            if timeout is not None and waited >= timeout:
                raise BusyError(
                    f"the model was still in use by another thread after {timeout:g} seconds: wait longer, close the "
                    "stream or leave the `with` block that uses it, or give each thread its own model"
                )
            if waited >= PATIENCE and not warned:
                warned = True
                warnings.warn(
                    f"waiting for {_name(self._caller or self._owner)}, which uses the same model. If that thread "
                    "waits for this one, attach the method with shared=True",
                    HealWarning,
                    stacklevel=5,
                )
            steps = [POLL if cancelled is not None else PATIENCE]
            if timeout is not None:
                steps.append(timeout - waited)
            self._changed.wait(min(steps))


def _name(thread: int | None) -> str:
    return next((f"thread {t.name!r}" for t in threading.enumerate() if t.ident == thread), "another thread")


_locks: weakref.WeakKeyDictionary[Any, ModelLock] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def lock_of(model: Any) -> ModelLock:
    """The lock of this model, shared by all its users."""
    with _making:
        return _locks.setdefault(model, ModelLock())
