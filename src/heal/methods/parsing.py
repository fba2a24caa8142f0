"""Methods from text: `heal`, `heal:alpha=0.5,interval=5,layers=8-23`, `heal:alpha=0.5+beam:beams=3`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from typing import Any

from heal.errors import ConfigError
from heal.methods.base import Method, available, create
from heal.methods.together import Together


def parse(text: str) -> Method:
    """A method with its options; several that work together are joined by plus signs."""
    names = "|".join(map(re.escape, available()))
    parts = re.split(rf"\+(?=(?:{names})(?:[:+]|$))", text)
    methods = [_one(part) for part in parts]
    return methods[0] if len(methods) == 1 else Together(tuple(methods))


def _one(text: str) -> Method:
    name, _, rest = text.partition(":")
    name, known = name.strip(), available()
    if name not in known:
        create(name)
    hints = typing.get_type_hints(known[name])
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals or key not in hints:
            raise ConfigError(f"{item!r} is not an option of {name}: write {name}:option=value,… with {_names(name)}")
        options[key] = _convert(value, hints[key], f"{name}:{key}")
    return create(name, **options)


def _names(name: str) -> str:
    return ", ".join(f.name for f in dataclasses.fields(available()[name]))


def _convert(value: str, hint: Any, where: str) -> Any:
    """Text to the type of a field; a union takes the first member that fits."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        for member in sorted(typing.get_args(hint), key=lambda m: m is not type(None)):
            try:
                return _convert(value, member, where)
            except ConfigError:
                continue
    elif hint is type(None) and value.lower() == "none":
        return None
    elif typing.get_origin(hint) is typing.Literal and value in typing.get_args(hint):
        return value
    elif hint is bool and value.lower() in ("true", "false"):
        return value.lower() == "true"
    elif typing.get_origin(hint) is tuple:
        return _ranges(value, where)
    elif hint is str:
        return value
    elif hint in (int, float):
        try:
            return hint(value)
        except ValueError:
            pass
    raise ConfigError(f"{where} cannot be {value!r}")


def _ranges(value: str, where: str) -> tuple[int, ...]:
    """`8-23` or `0+4+8-11`."""
    out: list[int] = []
    for part in value.split("+"):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"{where} cannot be {value!r}: write numbers and ranges as 0+4+8-11")
        out.extend(range(int(first), int(last or first) + 1))
    return tuple(out)
