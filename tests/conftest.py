"""Shared by all tests."""

from collections.abc import Iterator

import jaxtyping
import pytest

from tests.covering import mark_rest

pytest_plugins = ["pytester"]


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_rest(items)


@pytest.fixture
def without_type_checker() -> Iterator[None]:
    """Only tests have it, and it would be faster than the messages that users get."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
