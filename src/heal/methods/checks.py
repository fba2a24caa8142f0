"""Checks of options that several methods share. Each raises a ConfigError that names the option and its value."""

from __future__ import annotations

import math
from typing import Any, get_args

from heal.errors import ConfigError


def one_of(method: Any, choices: Any, *names: str) -> None:
    """`choices` is a Literal type or a tuple of strings."""
    allowed = get_args(choices) or tuple(choices)
    for name in names:
        if (value := getattr(method, name)) not in allowed:
            names_of = ", ".join("none" if choice is None else choice for choice in allowed)
            raise ConfigError(f"{name} cannot be {value!r}: choose one of {names_of}")


def finite(method: Any, *names: str) -> None:
    for name in names:
        if not math.isfinite(value := getattr(method, name)):
            raise ConfigError(f"{name} must be a finite number, not {value}")


def at_least(method: Any, low: int | float, *names: str, inf: bool = False) -> None:
    """A finite number of at least `low`, or infinity if `inf`. None (use the preset) passes."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not (low <= value and (inf or value < math.inf)):
            raise ConfigError(f"{name} must be {low:g} or more{' (inf is allowed)' if inf else ''}, not {value}")


def fraction(method: Any, *names: str) -> None:
    """A number from 0 to 1. None (use the preset) passes."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name} must lie between 0 and 1, not {value}")


def whole(method: Any, low: int, *names: str, high: int | None = None) -> None:
    """A whole number from `low` to `high`. None (use the method's default) passes."""
    for name in names:
        value = getattr(method, name)
        if value is None or (isinstance(value, int) and low <= value and (high is None or value <= high)):
            continue
        bounds = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{name} must be a whole number {bounds}, not {value!r}")


def layer_list(method: Any, name: str = "layers") -> None:
    """At least one layer index, 0 or more. None (all layers, or the method's choice) passes."""
    value = getattr(method, name)
    if value is not None and (not value or min(value) < 0):
        raise ConfigError(f"{name} must name at least one decoder layer, counted from 0, not {value}")


def layers_exist(method: Any, count: int, name: str = "layers") -> None:
    """A layer index, or all of a tuple of them, exist in a model with `count` layers. None passes."""
    value = getattr(method, name)
    last = max(value) if isinstance(value, tuple) else value
    if last is not None and last >= count:
        raise ConfigError(f"{name} names layer {last}, but the model has {count} layers (0 to {count - 1})")
