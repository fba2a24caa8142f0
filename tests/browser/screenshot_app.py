"""The picture of docs/app.md: the app after a comparison.

python -m tests.browser.screenshot_app
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.app.running import running
from tests.browser.browser import Browser, started
from tests.browser.screenshots import store
from tests.browser.test_app import choose, click, finished, load

WIDTH, HEIGHT = 1400, 1060


def main() -> None:
    with TemporaryDirectory() as name, running(Path(name) / "app") as app, started() as browser:
        browser.resize(WIDTH, HEIGHT)
        load(browser, app)
        compare(browser)
        store(browser, "app.png")


def compare(browser: Browser) -> None:
    choose(browser)
    click(browser, browser.one("#compare"))
    finished(browser)
    browser.run("scrollTo(0, 0); document.activeElement.blur()")
    time.sleep(1)  # the picture and the view are drawn


if __name__ == "__main__":
    main()
