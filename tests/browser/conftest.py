"""Tests in a real browser: `make test-app`. They are skipped where there is no Chromium."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.browser import CHROMIUM, DRIVER, Browser, started

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver: apt-get install chromium chromium-driver")
    pytest.importorskip("selenium")
    with started() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The window, wide and light."""
    chromium.media()
    chromium.resize(1400)
    return chromium


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: a folder of HEAL_SCREENSHOTS, to look at them, or a temporary one."""
    path = Path(os.environ.get("HEAL_SCREENSHOTS") or tmp_path_factory.mktemp("shots"))
    path.mkdir(parents=True, exist_ok=True)
    return path
