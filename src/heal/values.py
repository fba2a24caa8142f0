"""Convert and check option values from the command line or from Python. Ambiguous values are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from heal.errors import ConfigError, shortened

LARGEST = 1e15
"""Maximum absolute value of a number. Larger values overflow single precision when squared."""
HIGHEST_LAYER = 9_999
"""Maximum layer index: more than any model has, and few enough to list."""
YES = ("true", "yes", "on", "1")
NO = ("false", "no", "off", "0")

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIGITS = 18
"""Maximum digits of a whole number, so that it fits into 64 bits."""


def boolean(text: str, where: str) -> bool:
    word = text.strip().lower()
    if word not in YES + NO:
        raise ConfigError(f"{where} cannot be {text!r}: write true or false")
    return word in YES


def whole(text: str, where: str) -> int:
    word = text.strip()
    if not _WHOLE.fullmatch(word):
        raise ConfigError(f"{where} cannot be {text!r}: write a whole number")
    if len(word.lstrip("+-").lstrip("0")) > _DIGITS:
        raise ConfigError(f"{where} cannot be {text!r}: the number is too large")
    return int(word)


def number(text: str, where: str) -> float:
    """A number or inf, but not NaN."""
    word = text.strip().lower()
    if word.lstrip("+-") == "inf":
        return float(word)
    if not _NUMBER.fullmatch(word):
        raise ConfigError(f"{where} cannot be {text!r}: write a number")
    if abs(value := float(word)) > LARGEST:
        raise ConfigError(f"{where} cannot be {text!r}: the number is too large")
    return value


def items(text: str, owner: str, known: Sequence[str] | None = None) -> dict[str, str]:
    """The items of `a=1,b=2`. Each option may occur once, and must be in `known` if given."""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals or (known is not None and key not in known):
            choices = f" with {', '.join(known)}" if known else ""
            raise ConfigError(f"{item!r} is not an option of {owner}: write {owner}:option=value,…{choices}")
        if key in found:
            raise ConfigError(f"{owner}:{key} is given twice: {found[key]!r} and {value!r}")
        found[key] = value
    return found


def convert(text: str, hint: Any, where: str) -> Any:
    """Convert text to the type of a field. For a union, the first member that fits, with None first."""
    if _is_union(hint):
        for member in sorted(get_args(hint), key=lambda m: m is not NoneType):
            try:
                return convert(text, member, where)
            except ConfigError:
                continue
        if (listed := next((m for m in get_args(hint) if get_origin(m) is tuple), None)) is not None:
            return convert(text, listed, where)  # for its error message
    elif hint is NoneType and text.lower() == "none":
        return None
    elif get_origin(hint) is Literal and text in get_args(hint):
        return text
    elif hint is bool:
        return boolean(text, where)
    elif get_origin(hint) is tuple:
        return tuple(text.split("+")) if get_args(hint)[0] is str else _ranges(text, where)
    elif hint is Path and text:
        return Path(text)
    elif hint is str and text:
        return text
    elif hint is int:
        return whole(text, where)
    elif hint is float:
        return number(text, where)
    raise ConfigError(f"{where} cannot be {text!r}: write {_wanted(hint)}")


def _is_union(hint: Any) -> bool:
    return isinstance(hint, UnionType) or get_origin(hint) is Union


def _wanted(hint: Any) -> str:
    """A description of the values that an option accepts."""
    if _is_union(hint):
        return " or ".join(_wanted(member) for member in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    words = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "none"}
    return words.get(hint, "a string")


def _ranges(text: str, where: str) -> tuple[int, ...]:
    """`8-23` or `0+4+8-11`."""
    found: dict[int, None] = {}
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        if not _digits(first) or (dash and not _digits(last)):
            raise ConfigError(f"{where} cannot be {text!r}: write numbers and ranges as 0+4+8-11")
        low, high = _layer(first, where), _layer(last or first, where)
        if high < low:
            raise ConfigError(f"{where} cannot be {text!r}: the range {part} ends before it starts")
        for layer in range(low, high + 1):
            if layer in found:
                raise ConfigError(f"{where} names layer {layer} twice")
            found[layer] = None
    return tuple(found)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _layer(text: str, where: str) -> int:
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(HIGHEST_LAYER)):
        raise ConfigError(f"{where} names layer {digits}: no model has more than {HIGHEST_LAYER + 1} layers")
    return int(digits)


def check_types(configuration: Any) -> None:
    """Check that the fields of a dataclass have the declared types."""
    kind: Any = type(configuration)
    hints = _hints(kind)
    for name in (field.name for field in fields(configuration) if field.init):
        value = getattr(configuration, name)
        if not _fits(value, hints[name]):
            raise ConfigError(
                f"{name} of {kind.__name__} cannot be {shortened(repr(value), 60)}: it must be {_said(hints[name])}"
            )


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return type(value) in {type(choice) for choice in get_args(hint)}
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def _said(hint: Any) -> str:
    """A description of a type."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_said(part) for part in get_args(hint)))
    if get_origin(hint) is tuple:
        return f"a tuple of {_said(get_args(hint)[0]).removeprefix('a ')}s"
    names = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", NoneType: "None"}
    names |= {Mapping: "a mapping"}
    kind = str if get_origin(hint) is Literal else get_origin(hint) or hint
    return names.get(kind) or f"a {getattr(kind, '__name__', kind)}"
