"""The method that measures a generation without changing it, for traces of the plain model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heal.methods.base import Method, create


def observer(options: Mapping[str, Any] | None = None) -> Method:
    """HEAL without calibration: it measures every head and leaves the output unchanged. `options` are its others."""
    return create("heal", **{**(options or {}), "calibrate": False})
