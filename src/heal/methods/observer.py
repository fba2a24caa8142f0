"""The method that measures a generation without changing it, for traces of the plain model."""

from __future__ import annotations

from heal.methods.base import Method, create


def observer() -> Method:
    """HEAL without calibration: it measures every head and leaves the output unchanged."""
    return create("heal", calibrate=False)
