"""One answer of a run, and the file of them: a line each, appended for good."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from heal import strict_json
from heal.atomic_write import LINK, NO_FOLLOW
from heal.errors import RunError, shortened
from heal.json_values import json_values


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

    @property
    def answer(self) -> tuple[Any, ...]:
        """What must be the same wherever this record occurs again: everything but time and memory."""
        return self.text, self.tokens, self.finish, self.fired, self.error

    def line(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(json_values(values), ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def of(cls, line: bytes) -> Record:
        """Raises `strict_json.Broken` if the line is not JSON, `strict_json.Refused` if it is not a record."""
        values = strict_json.parse(strict_json.decode(line))
        if not isinstance(values, dict):
            raise strict_json.Refused("it is not an object")
        for name, (right, what) in _FIELDS.items():
            if name not in values:
                raise strict_json.Refused(f"it has no `{name}`")
            if not right(values[name]):
                raise strict_json.Refused(f"`{name}` must be {what}")
        if odd := set(values) - {f.name for f in fields(cls)}:
            raise strict_json.Refused(f"it has `{shortened(min(odd))}`, which no record has")
        if (values["text"] is None) == (values["error"] is None):
            raise strict_json.Refused("it must have either a text or an error")
        times = {name: float(values[name]) for name in ("seconds", "first_token_seconds")}
        return cls(**values | times)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e12


def _name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _maybe_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _maybe_object(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _firing(value: Any) -> bool:
    """As `heal.methods.base.Fired` has it."""
    if not isinstance(value, dict):
        return value is None
    counted = all(_count(value.get(name)) for name in ("steps", "changes"))
    return counted and "reason" in value and _maybe_text(value["reason"])


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "task": (_name, "a name"),
    "method": (_name, "a name"),
    "sample": (_name, "a name"),
    "batch": (_count, "a whole number from 0"),
    "text": (_maybe_text, "a text or null"),
    "tokens": (_count, "a whole number from 0"),
    "finish": (_maybe_text, "a text or null"),
    "seconds": (_time, "a number from 0"),
    "first_token_seconds": (_time, "a number from 0"),
    "memory": (_count, "a whole number from 0"),
    "fired": (_firing, "null or an object with steps, changes and reason"),
    "parse": (_maybe_object, "an object or null"),
    "error": (_maybe_text, "a text or null"),
}


def read(path: Path) -> tuple[list[Record], int]:
    """Every whole record, and how many bytes they take: what comes after was being written when the run ended."""
    if not os.path.lexists(path):
        return [], 0
    content = strict_json.read_bytes(path, RunError)
    found: list[Record] = []
    size = 0
    lines = content.split(b"\n")[:-1]  # the last piece has no end: nothing, or half a line
    for number, line in enumerate(lines, 1):
        try:
            found.append(Record.of(line))
        except (strict_json.Broken, strict_json.Refused) as error:
            if number == len(lines) and isinstance(error, strict_json.Broken):
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
            self._file = _opened(path)
            os.ftruncate(self._file, size)
        except OSError as error:
            reason = LINK if error.errno == errno.ELOOP else error.strerror
            raise RunError(f"{path} cannot be written: {reason}") from error

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


def _opened(path: Path) -> int:
    """To append to a file that is there or new: never through a symbolic link, and not to a pipe or a device."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags, 0o666)  # less what the umask forbids
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
    return handle
