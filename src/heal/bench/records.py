"""Files of others: JSON and JSON lines, with errors that name the file, the line and what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heal.errors import DataError


def read_text(path: Path, source: str = "") -> str:
    """The whole file. `source` says where official data comes from."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path} is missing{f'; it comes from {source}' if source else ''}") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, not a file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path, source: str = "") -> Any:
    text = read_text(path, source)
    if not text.strip():
        raise DataError(f"{path} is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from error


def read_records(path: Path, source: str = "") -> list[dict[str, Any]]:
    """A JSON array of objects, or one object a line: both are in use under the same names."""
    text = read_text(path, source)
    if not text.strip():
        raise DataError(f"{path} is empty")
    found = _array(path, text) if text.lstrip().startswith("[") else _lines(path, text)
    for number, record in enumerate(found, 1):
        if not isinstance(record, dict):
            raise DataError(f"{path}: record {number} is not an object")
    return found


def _array(path: Path, text: str) -> list[Any]:
    try:
        found: list[Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from error
    if not found:
        raise DataError(f"{path} has no records")
    return found


def _lines(path: Path, text: str) -> list[Any]:
    # str.splitlines would also cut at characters that may stand inside a JSON string (U+2028 and others)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = []
    for number, line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            half = " It is the last line: the program that wrote it was probably cut off" * (number == lines[-1][0])
            raise DataError(f"{path}, line {number}: {error.msg}.{half}") from error
    return found


def need(record: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in record:
        raise DataError(f"{where} has no `{key}`")
    return record[key]
