"""Strict reading of JSON and JSON lines, used everywhere in this package.

The standard library accepts duplicate keys, NaN and lone surrogates. Here each of these is an error, as are files
that are too large, nested too deeply, not UTF-8, or not regular files.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from heal.errors import DataError, HealError, shortened

MAX_BYTES = 2 << 30
"""For comparison: the annotations of COCO have 0.5 GB."""
MAX_DEPTH = 64
MAX_DIGITS = 100
"""Maximum digits of an integer, so that it can be converted to float."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Broken(ValueError):
    """The text is not JSON, for example because its writer was interrupted."""


class Refused(ValueError):
    """The text is JSON, but ambiguous or beyond the limits."""


def parse(text: str, surrogates: bool = False) -> Any:
    """One JSON value. Raises `Broken` or `Refused`.

    `surrogates` allows lone surrogates, which cannot be encoded as UTF-8.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole, parse_float=_float
        )
    except json.JSONDecodeError as error:
        raise Broken(f"{error.msg} in line {error.lineno}") from error
    except RecursionError:
        raise Refused(f"it is nested more than {MAX_DEPTH} levels deep") from None
    _check_depth(value)
    if not surrogates and _SURROGATE.search(text):
        _check_strings(value)
    return value


def decode(data: bytes) -> str:
    """UTF-8, with or without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Broken(f"byte {error.start} is not UTF-8") from None


def read_bytes(path: Path, error: type[HealError] = DataError, source: str = "") -> bytes:
    """The whole file. `source` names the origin of official data in the error message."""
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise error(f"{path} is a folder, not a file")
        if not stat.S_ISREG(found.st_mode):
            raise error(f"{path} is a pipe or a device: give a file")
        if found.st_size > MAX_BYTES:
            raise error(f"{path} has {found.st_size:,} bytes; files of up to {MAX_BYTES:,} can be read")
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise error(f"{path} is missing{f'; it comes from {source}' if source else ''}") from None
    except OSError as problem:
        raise error(f"{shortened(str(path))} cannot be read: {problem.strerror}") from problem
    except ValueError as problem:  # a null character in the name
        raise error(f"{shortened(repr(str(path)))} cannot be the name of a file: {problem}") from problem


def read_text(path: Path, error: type[HealError] = DataError, source: str = "") -> str:
    """The whole file as text. An empty file is an error."""
    data = read_bytes(path, error, source)
    try:
        text = decode(data)
    except Broken as problem:
        raise error(f"{path} is not a text file in UTF-8: {problem}") from None
    if not text.strip():
        raise error(f"{path} is empty")
    return text


def read(path: Path, error: type[HealError] = DataError, source: str = "") -> Any:
    """The value of a JSON file."""
    return parsed(read_text(path, error, source), path, error)


def parsed(text: str, path: Path, error: type[HealError] = DataError) -> Any:
    """The value of a text that was read from `path`."""
    try:
        return parse(text)
    except Broken as problem:
        raise error(f"{path} is not JSON: {problem}") from problem
    except Refused as problem:
        raise error(f"{path} cannot be used: {problem}") from problem


def lines(text: str, path: Path, error: type[HealError] = DataError) -> Iterator[tuple[int, Any]]:
    """The number and the value of every non-blank line."""
    # str.splitlines would also split at characters that are valid in JSON strings (U+2028 and others)
    rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, line in rows:
        try:
            yield number, parse(line)
        except Broken as problem:
            what = str(problem).removesuffix(" in line 1")
            half = " It is the last line: the program that wrote it was probably cut off" * (number == rows[-1][0])
            raise error(f"{path}, line {number} is not JSON: {what}.{half}") from problem
        except Refused as problem:
            raise error(f"{path}, line {number} cannot be used: {problem}") from problem


# ── checks missing in the standard library ────────────────────────────────────────────────────────────────


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise Refused(f"the key {shortened(twice)!r} occurs twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise Refused(f"{name} is not a number that JSON has")


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise Refused(f"it has a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise Refused(f"the number {shortened(text, 20)} is too large")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node if type(node) is list else ())
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise Refused(f"it is nested more than {MAX_DEPTH} levels deep")


def _check_strings(value: Any) -> None:
    """Reject lone surrogates, which cannot be written to a file."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused("a text has half a surrogate pair (\\ud800 to \\udfff) in it") from None
    elif isinstance(value, dict):
        for name, child in value.items():
            _check_strings(name)
            _check_strings(child)
    elif isinstance(value, list):
        for child in value:
            _check_strings(child)
