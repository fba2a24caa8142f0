"""Checks of options that several methods share. Each raises a ConfigError that names the option and its value."""

from __future__ import annotations

import math
from typing import Any, get_args

from heal.errors import ConfigError


def one_of(method: Any, choices: Any, *names: str) -> None:
    """`choices` is a Literal type or a tuple of words."""
    allowed = get_args(choices) or tuple(choices)
    for name in names:
        if (value := getattr(method, name)) not in allowed:
            raise ConfigError(f"{name} cannot be {value!r}: choose one of {', '.join(allowed)}")


def at_least(method: Any, low: int | float, *names: str) -> None:
    """A finite number from `low` on; None is left to the preset."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not low <= value < math.inf:
            raise ConfigError(f"{name} must be {low:g} or more, not {value}")


def fraction(method: Any, *names: str) -> None:
    """A number from 0 to 1; None is left to the preset."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name} must lie between 0 and 1, not {value}")


def whole(method: Any, low: int, *names: str) -> None:
    """A whole number from `low` on; None is left to the method."""
    for name in names:
        value = getattr(method, name)
        if value is not None and (not isinstance(value, int) or value < low):
            raise ConfigError(f"{name} must be a whole number from {low} on, not {value!r}")


def layer_list(method: Any, name: str = "layers") -> None:
    """At least one layer from 0 on; None means all, or the method's own choice."""
    value = getattr(method, name)
    if value is not None and (not value or min(value) < 0):
        raise ConfigError(f"{name} must name at least one decoder layer from 0 on, not {value}")


def within(method: Any, count: int, name: str = "layers") -> None:
    """That a model of `count` layers has all that are named."""
    value = getattr(method, name)
    last = max(value) if isinstance(value, tuple) else value
    if last is not None and last >= count:
        raise ConfigError(f"{name} names layer {last}, but the model has {count} (0 to {count - 1})")
