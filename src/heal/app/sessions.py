"""The users of the app: what each of them is waiting for, and the answers that can be downloaded."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from heal.generate import Answer
from heal.streams import Stream
from heal.view import answer_data

MOST = 64
"""Sessions that are stored. The oldest is forgotten first."""


class Ticket:
    """One question of a user. It can be cancelled while it waits and while it is answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @contextmanager
    def using(self, stream: Stream) -> Iterator[Stream]:
        """Close the stream at the end, or when the question is cancelled."""
        with stream:
            with self._lock:
                self._stream = stream
            if self._cancelled:
                stream.close()
            try:
                yield stream
            finally:
                with self._lock:
                    self._stream = None

    def cancel(self) -> None:
        """Stop after the current token."""
        with self._lock:
            self._cancelled, stream = True, self._stream
        if stream is not None:
            stream.close()


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers to one question, the plain model first."""

    question: str
    answers: dict[str, Answer]
    objects: frozenset[str] | None
    notes: tuple[str, ...] = ()
    key: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    """The part of the address that only this user knows."""

    def data(self, small: bool = False) -> dict[str, Any]:
        """For the view (docs/view.md)."""
        return answer_data(
            self.answers, objects=self.objects, title=self.question, notes=list(self.notes), small=small
        )


class Session:
    """One open page. It has one question at a time."""

    def __init__(self) -> None:
        self._ticket: Ticket | None = None
        self.waiting = False
        """Whether its question waits for its turn."""
        self.answered: Answered | None = None

    def ask(self) -> None:
        """A question was sent. It may have to wait."""
        self.stop()
        self._ticket, self.waiting = Ticket(), True

    def begin(self) -> Ticket:
        """The question is answered now."""
        if self._ticket is None or not self.waiting:
            self._ticket = Ticket()
        self.waiting = False
        return self._ticket

    def stop(self) -> None:
        """Cancel the question, whether it waits or not."""
        if self._ticket is not None:
            self._ticket.cancel()


class Sessions:
    """All open pages by the hash that gradio gives them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: OrderedDict[str, Session] = OrderedDict()

    def of(self, name: str) -> Session:
        with self._lock:
            found = self._all.setdefault(name, Session())
            self._all.move_to_end(name)
            oldest = self._all.popitem(last=False)[1] if len(self._all) > MOST else None
        if oldest is not None:
            oldest.stop()
        return found

    @property
    def waiting(self) -> int:
        """The number of questions that wait."""
        with self._lock:
            return sum(one.waiting for one in self._all.values())

    def leave(self, name: str) -> None:
        """The page was closed."""
        with self._lock:
            found = self._all.pop(name, None)
        if found is not None:
            found.stop()

    def answered(self, key: str) -> Answered | None:
        """The answers with this key."""
        with self._lock:
            found = [one.answered for one in self._all.values() if one.answered is not None]
        return next((one for one in found if secrets.compare_digest(one.key.encode(), key.encode())), None)

    def close(self) -> None:
        for name in list(self._all):
            self.leave(name)
