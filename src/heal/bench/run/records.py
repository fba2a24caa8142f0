"""Records of a run: one answer per line, appended to a file."""

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
    """Identifies a record. Keys are unique in a run."""

    task: str
    method: str
    sample: str


@dataclass(frozen=True)
class Record:
    """The answer of one method to one sample, or the error that prevented it."""

    task: str
    method: str
    sample: str
    batch: int
    """Index of the batch in the run."""
    text: str | None = None
    tokens: int = 0
    finish: str | None = None
    """"stop", or "length" if the answer reached max_new_tokens."""
    seconds: float = 0.0
    """Time of the batch divided by its number of rows."""
    first_token_seconds: float = 0.0
    """The part of `seconds` until the first token."""
    memory: int = 0
    """Peak memory in bytes while the batch was answered."""
    fired: Mapping[str, Any] | None = None
    """Activity of the method; None for the plain model."""
    parse: Mapping[str, Any] | None = None
    """The parsed answer."""
    error: str | None = None
    """Error message of a failed sample."""

    @property
    def key(self) -> Key:
        return Key(self.task, self.method, self.sample)

    @property
    def answer(self) -> tuple[Any, ...]:
        """Everything except time and memory. Repeated records must agree in it."""
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
            raise strict_json.Refused(f"it has `{shortened(min(odd))}`, which is not a field of a record")
        if (values["text"] is None) == (values["error"] is None):
            raise strict_json.Refused("it must have either `text` or `error`")
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
    """Whether the value has the fields of `heal.methods.base.Fired`."""
    if not isinstance(value, dict):
        return value is None
    counted = all(_count(value.get(name)) for name in ("steps", "changes"))
    return counted and "reason" in value and _maybe_text(value["reason"])


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "task": (_name, "a name"),
    "method": (_name, "a name"),
    "sample": (_name, "a name"),
    "batch": (_count, "a whole number of 0 or more"),
    "text": (_maybe_text, "a string or null"),
    "tokens": (_count, "a whole number of 0 or more"),
    "finish": (_maybe_text, "a string or null"),
    "seconds": (_time, "a number of 0 or more"),
    "first_token_seconds": (_time, "a number of 0 or more"),
    "memory": (_count, "a whole number of 0 or more"),
    "fired": (_firing, "null or an object with steps, changes and reason"),
    "parse": (_maybe_object, "an object or null"),
    "error": (_maybe_text, "a string or null"),
}


def read(path: Path) -> tuple[list[Record], int]:
    """Return all complete records and their size in bytes. An incomplete last line is ignored."""
    if not os.path.lexists(path):
        return [], 0
    content = strict_json.read_bytes(path, RunError)
    found: list[Record] = []
    size = 0
    lines = content.split(b"\n")[:-1]  # the last piece is empty or an incomplete line
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
    """Appends records to a file and flushes each batch to disk. Use it as a context manager."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: how many bytes of the existing file to keep."""
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
                f"{self.path} cannot be written: {error.strerror}. Earlier records are intact: "
                "free some space, then resume"
            ) from error
        self._size += len(content)


def _opened(path: Path) -> int:
    """Open a new or existing file for appending. Symbolic links, pipes and devices are refused."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags, 0o666)  # restricted further by the umask
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
    return handle
