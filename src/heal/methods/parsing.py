"""Methods from text: `heal`, `heal:alpha=0.5,interval=5,layers=8-23`, `heal:alpha=0.5+beam:beams=3`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from typing import Any

from heal import values
from heal.errors import ConfigError
from heal.methods.base import Method, available, create
from heal.methods.together import Together

HIGHEST = 9_999
"""Numbers of layers go up to this: more than any model has, and little enough to be listed."""


def parse(text: str) -> Method:
    """A method with its options; several that work together are joined by plus signs."""
    names = "|".join(map(re.escape, available()))
    parts = re.split(rf"\+(?=(?:{names})(?:[:+]|$))", text)
    methods = [_one(part) for part in parts]
    names_given = [method.name for method in methods]
    if twice := next((name for name in names_given if names_given.count(name) > 1), None):
        raise ConfigError(f"{twice} is named twice in {text!r}: only one of them could have its way")
    return methods[0] if len(methods) == 1 else Together(tuple(methods))


def _one(text: str) -> Method:
    name, _, rest = text.partition(":")
    name, known = name.strip(), available()
    if name not in known:
        create(name)
    hints = typing.get_type_hints(known[name])
    fields = [f.name for f in dataclasses.fields(known[name])]
    options: dict[str, Any] = {}
    for key, value in values.items(rest, name, fields).items():
        options[key] = _convert(value, hints[key], f"{name}:{key}")
    return create(name, **options)


def _convert(text: str, hint: Any, where: str) -> Any:
    """Text to the type of a field; a union takes the first member that fits."""
    if _is_union(hint):
        for member in sorted(typing.get_args(hint), key=lambda m: m is not type(None)):
            try:
                return _convert(text, member, where)
            except ConfigError:
                continue
        if (listed := next((m for m in typing.get_args(hint) if typing.get_origin(m) is tuple), None)) is not None:
            return _convert(text, listed, where)  # for its message
    elif hint is type(None) and text.lower() == "none":
        return None
    elif typing.get_origin(hint) is typing.Literal and text in typing.get_args(hint):
        return text
    elif hint is bool:
        return values.boolean(text, where)
    elif typing.get_origin(hint) is tuple:
        return _ranges(text, where)
    elif hint is str and text:
        return text
    elif hint is int:
        return values.whole(text, where)
    elif hint is float:
        return values.number(text, where)
    raise ConfigError(f"{where} cannot be {text!r}: write {_wanted(hint)}")


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _wanted(hint: Any) -> str:
    """What an option takes, in words."""
    if _is_union(hint):
        return " or ".join(_wanted(member) for member in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    words = {bool: "true or false", int: "a whole number", float: "a number", type(None): "none"}
    return words.get(hint, "a text")


def _ranges(text: str, where: str) -> tuple[int, ...]:
    """`8-23` or `0+4+8-11`."""
    found: dict[int, None] = {}
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        if not _digits(first) or (dash and not _digits(last)):
            raise ConfigError(f"{where} cannot be {text!r}: write numbers and ranges as 0+4+8-11")
        low, high = _layer(first, where), _layer(last or first, where)
        if high < low:
            raise ConfigError(f"{where} cannot be {text!r}: {part} ends before it begins")
        for layer in range(low, high + 1):
            if layer in found:
                raise ConfigError(f"{where} names layer {layer} twice")
            found[layer] = None
    return tuple(found)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _layer(text: str, where: str) -> int:
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(HIGHEST)):
        raise ConfigError(f"{where} names layer {digits}: no model has more than {HIGHEST + 1} layers")
    return int(digits)
