"""Shared by all tests."""

import signal
from collections.abc import Iterator

import jaxtyping
import pytest

from tests.covering import mark_rest

pytest_plugins = ["pytester"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a shell's background jobs ignore Ctrl-C, and so would the programs that tests start and interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_rest(items)


@pytest.fixture
def without_type_checker() -> Iterator[None]:
    """Only tests have it, and it would be faster than the messages that users get."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
