"""Methods from text: `heal`, `heal:alpha=0.5,interval=5,layers=8-23`, `heal:alpha=0.5+beam:beams=3`.

A class in a user's file is written as `path/to/file.py:Name:option=value`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any

from heal import values
from heal.errors import ConfigError
from heal.methods.base import Method, available, create
from heal.methods.combined import Combined
from heal.methods.loading import FILE, from_file


def parse(text: str) -> Method:
    """A method with its options. Plus signs join methods that are combined."""
    names = "|".join(map(re.escape, available()))
    parts = re.split(rf"\+(?=(?:{names})(?:[:+]|$))", text)
    methods = [_one(part) for part in parts]
    names_given = [method.name for method in methods]
    if twice := next((name for name in names_given if names_given.count(name) > 1), None):
        raise ConfigError(f"{twice} is named twice in {text!r}: name each method once")
    return methods[0] if len(methods) == 1 else Combined(tuple(methods))


def _one(text: str) -> Method:
    if (in_file := FILE.match(text)) is not None:
        name, kind = in_file["name"], from_file(in_file["path"], in_file["name"])
        after = text[in_file.end() :]
        if after and not after.startswith(":"):
            raise ConfigError(f"{text!r} is not a method: write path/to/file.py:Name:option=value,…")
        rest = after[1:]
    else:
        name, _, rest = text.partition(":")
        name = name.strip()
        if name not in available():
            create(name)
        kind = available()[name]
    hints = typing.get_type_hints(kind)
    fields = [f.name for f in dataclasses.fields(kind)]
    options: dict[str, Any] = {}
    for key, value in values.items(rest, name, fields).items():
        options[key] = values.convert(value, hints[key], f"{name}:{key}")
    return kind(**options)
