"""Shared by all tests."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def without_type_checker() -> Iterator[None]:
    """Only tests have it, and it would be faster than the messages that users get."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
