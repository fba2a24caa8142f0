"""Values of options from the words of a command line. What is not clearly meant is an error."""

from __future__ import annotations

import re
from collections.abc import Sequence

from heal.errors import ConfigError

LARGEST = 1e15
"""Beyond this no option means anything, and squares and single precision overflow."""
YES = ("true", "yes", "on", "1")
NO = ("false", "no", "off", "0")

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIGITS = 18
"""So that every whole number fits 64 bits."""


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
    """A number or inf; never NaN."""
    word = text.strip().lower()
    if word.lstrip("+-") == "inf":
        return float(word)
    if not _NUMBER.fullmatch(word):
        raise ConfigError(f"{where} cannot be {text!r}: write a number")
    if abs(value := float(word)) > LARGEST:
        raise ConfigError(f"{where} cannot be {text!r}: the number is too large")
    return value


def items(text: str, owner: str, known: Sequence[str] | None = None) -> dict[str, str]:
    """The words of `a=1,b=2`, each option once; of what is known, if that is told."""
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
