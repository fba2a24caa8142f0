"""Reading JSON and JSON Lines data, with errors that name the file, the line and the fix."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from heal import strict_json
from heal.errors import DataError, shortened

MAX_ID = 1000
"""Maximum number of characters of an id."""
MAX_NAME = 255
"""Maximum number of bytes of a path component, as in common file systems."""


def read_text(path: Path, source: str = "") -> str:
    """Read a file. `source` says where the official data can be found."""
    return strict_json.read_text(path, DataError, source)


def read_json(path: Path, source: str = "") -> Any:
    return strict_json.read(path, DataError, source)


def read_object(path: Path, source: str = "") -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    found = read_json(path, source)
    if not isinstance(found, dict):
        raise DataError(f"{path} must be a JSON object {{…}}, not {kind(found)}")
    return found


def read_records(path: Path, source: str = "") -> list[dict[str, Any]]:
    """Read a JSON array of objects, or JSON Lines: both are used with the same file names."""
    text = read_text(path, source)
    if text.lstrip().startswith("["):
        found = strict_json.parsed(text, path)
    else:
        found = [value for _, value in strict_json.lines(text, path)]
    if not found:
        raise DataError(f"{path} has no records")
    for number, record in enumerate(found, 1):
        if not isinstance(record, dict):
            raise DataError(f"{path}: record {number} is not an object")
    return found


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────────


def need(record: Mapping[str, Any], key: str, where: str) -> Any:
    if not isinstance(record, Mapping):
        raise DataError(f"{where} is {kind(record)}, not an object")
    if key not in record:
        raise DataError(f"{where} has no `{shortened(key)}`")
    return record[key]


def need_text(record: Mapping[str, Any], key: str, where: str) -> str:
    """A string that is not blank."""
    value = need(record, key, where)
    if not isinstance(value, str):
        raise DataError(f"{where}: `{key}` must be a string, not {kind(value)}")
    if not value.strip():
        raise DataError(f"{where}: `{key}` is empty")
    return value


def need_list(record: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = need(record, key, where)
    if not isinstance(value, list):
        raise DataError(f"{where}: `{key}` must be a list, not {kind(value)}")
    return value


def need_texts(record: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = need_list(record, key, where)
    for item in value:
        if not isinstance(item, str):
            raise DataError(f"{where}: `{key}` must be a list of strings, but has {kind(item)}")
        if not item.strip():
            raise DataError(f"{where}: `{key}` has an empty string")
    if len(set(value)) < len(value):
        twice = next(item for item in value if value.count(item) > 1)
        raise DataError(f"{where}: `{key}` has {shortened(twice, 40)!r} twice")
    return value


def need_id(record: Mapping[str, Any], key: str, where: str) -> str:
    """A string or a whole number; 7 and "7" are the same id."""
    return as_id(need(record, key, where), f"{where}: `{key}`")


def as_id(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise DataError(f"{where} must be a string or a whole number, not {kind(value)}")
    found = str(value)
    if not found.strip():
        raise DataError(f"{where} is empty")
    if len(found) > MAX_ID:
        raise DataError(f"{where} has {len(found)} characters, which is too long: {shortened(found, 20)}")
    return found


def need_image(record: Mapping[str, Any], key: str, where: str) -> str:
    return image_name(need(record, key, where), f"{where}: `{key}`")


def image_name(value: Any, where: str) -> str:
    """A path inside the image folder, so that data files cannot make a run read other files."""
    if not isinstance(value, str):
        raise DataError(f"{where} must be the name of an image, not {kind(value)}")
    if not value.strip() or "\0" in value:
        raise DataError(f"{where} is not the name of an image: {value[:20]!r}")
    parts = PurePosixPath(value).parts + PureWindowsPath(value).parts
    if value.startswith(("/", "\\")) or PureWindowsPath(value).drive or ".." in parts:
        raise DataError(
            f"{where} is {shortened(value)!r}: image names must be relative paths inside the data folder, without "
            "`..`. Give the image folder with the option images="
        )
    if any(len(part.encode()) > MAX_NAME for part in parts) or len(value.encode()) > 4 * MAX_NAME:
        raise DataError(f"{where} has {len(value)} characters, which is too long: {shortened(value, 20)!r}")
    return value


def kind(value: Any) -> str:
    """The JSON type of a value."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")


class UniqueKeys:
    """Raises an error for repeated keys."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._seen: dict[Hashable, int] = {}

    def check(self, key: Hashable, what: str, number: int) -> None:
        if key in self._seen:
            raise DataError(
                f"{self.where}: {shortened(what, 120)} occurs twice (records {self._seen[key]} and {number})"
            )
        self._seen[key] = number
