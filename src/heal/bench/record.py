"""One answer of a run, and the file of them: a line each, appended for good."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from heal.errors import RunError
from heal.plain import plain


class Key(NamedTuple):
    """What a record is about: there is one of each in a run."""

    task: str
    method: str
    sample: str


@dataclass(frozen=True)
class Record:
    """What one method answered to one sample, or why there is no answer."""

    task: str
    method: str
    sample: str
    batch: int
    """Which batch of the run it was answered in."""
    text: str | None = None
    tokens: int = 0
    finish: str | None = None
    """stop, or length if it was cut at max_new_tokens."""
    seconds: float = 0.0
    """Its share of the time of the batch."""
    first_token_seconds: float = 0.0
    """Of it, until the first token."""
    memory: int = 0
    """The most bytes held while the batch was answered."""
    fired: Mapping[str, Any] | None = None
    """What the method did; None for the plain model."""
    parse: Mapping[str, Any] | None = None
    """How the task read the answer."""
    error: str | None = None
    """Why it failed."""

    @property
    def key(self) -> Key:
        return Key(self.task, self.method, self.sample)

    def line(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(plain(values), ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def of(cls, line: bytes) -> Record:
        return cls(**json.loads(line))


def read(path: Path) -> tuple[list[Record], int]:
    """Every whole record, and how many bytes they take: what comes after was being written when the run ended."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    found: list[Record] = []
    size = 0
    lines = content.split(b"\n")[:-1]  # the last piece has no end: nothing, or half a line
    for number, line in enumerate(lines, 1):
        try:
            found.append(Record.of(line))
        except (ValueError, TypeError) as error:
            if number == len(lines):
                break
            raise RunError(f"{path}, line {number} is not a record ({error}): remove this line and resume") from error
        size += len(line) + 1
    return found, size


class Appender:
    """A file that records are added to, each batch on disk before the next one begins. A context manager."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: what to keep of the file as it is."""
        self.path, self._size = path, size
        try:
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            os.ftruncate(self._file, size)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def add(self, records: Sequence[Record]) -> None:
        content = "".join(record.line() for record in records).encode()
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}. What was there is intact: make room, then resume"
            ) from error
        self._size += len(content)
