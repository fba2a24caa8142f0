"""Values that may be missing in general, but not in a test."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value; a failure if it is missing."""
    assert value is not None
    return value
