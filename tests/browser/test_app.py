"""`heal app` in a browser: ask, compare, stop, download, bad pictures, two users, a narrow window."""

import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from heal.trace import Trace
from tests.app.running import OUTSIDE, App, running
from tests.browser.browser import Browser

pytest.importorskip("gradio")

from heal.app.asking import MOST_BYTES

COUNTER = 4
"""The first counter scene."""
WATCH = """
window.seen = [];
const look = () => {
  const [text, status] = ['#live', '#status p'].map((id) => document.querySelector(id)?.innerText.trim() ?? '');
  const last = window.seen.at(-1);
  if (!last || last.text !== text || last.status !== status) window.seen.push({text, status, at: Date.now()});
};
for (const id of ['#live', '#status'])
  new MutationObserver(look).observe(document.querySelector(id), {childList: true, subtree: true});
"""
STOP_AT_FIRST_TEXT = """
new MutationObserver((_, own) => {
  const begun = document.querySelector('#status p')?.innerText.startsWith('Generating');
  if (begun && document.querySelector('#live .heal-text span')) {
    own.disconnect();
    document.querySelector('#stop').click();
  }
}).observe(document.querySelector('#live'), {childList: true, subtree: true});
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(tmp_path_factory.mktemp("app")) as found:
        yield found
        assert found.end() == 0
        log = found.log.read_text()
        assert "Traceback" not in log
        assert OUTSIDE not in log
        assert list(found.folder.iterdir()) == []


@pytest.fixture
def page(browser: Browser, app: App) -> Browser:
    return load(browser, app)


def load(browser: Browser, app: App) -> Browser:
    browser.problems()
    browser.requests()
    browser.driver.get(app.address)
    until(lambda: browser.all("#ask") and len(browser.all("#examples .thumbnail-item")) == 8)
    return browser


def until(ready: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


def choose(page: Browser, index: int = COUNTER) -> None:
    click(page, page.all("#examples .thumbnail-item")[index])
    until(lambda: page.all("#picture img"))


def click(page: Browser, element: Any) -> None:
    page.run("arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", element)


def finished(page: Browser, message: str = "Done.") -> str:
    """The text of the answers, when all of them are there and the next question can be asked."""
    until(lambda: page.text("#status").startswith(message) and page.one("#ask").is_enabled())
    return page.text("#live")


def upload(page: Browser, path: Path) -> None:
    page.one("#picture input[type=file]").send_keys(str(path))


def words(page: Browser, section: int = 0) -> str:
    return " ".join(page.all("#live .heal-text")[section].text.split())


def test_it_loads_from_this_computer_only(page: Browser, app: App) -> None:
    choose(page)
    click(page, page.one("#compare"))
    finished(page)
    until(lambda: page.all("#view iframe"))
    assert page.problems() == []
    hosts = {urlsplit(address).netloc for address in page.requests() if address.startswith(("http", "ws"))}
    assert hosts == {urlsplit(app.address).netloc}


def test_the_text_streams_and_the_view_appears(page: Browser) -> None:
    choose(page)
    page.run(WATCH)
    click(page, page.one("#ask"))
    finished(page)
    final = words(page)
    seen = page.run("return window.seen")
    assert any(one["status"].startswith("Waiting") for one in seen)
    growing = {one["text"] for one in seen if one["status"] == "Generating: heal …"}
    lengths = sorted(len(text) for text in growing)
    assert len(lengths) >= 3
    assert lengths[0] < lengths[-1] <= len(page.text("#live"))
    assert len(final.split()) > 20
    shaded = page.run("return [...document.querySelectorAll('#live span')].filter(e => e.style.cssText).length")
    assert shaded >= 5
    assert page.all("#live .heal-wrong")
    inside(page, lambda: "In the picture: bottle, motorcycle, person" in page.text("body"))


def inside(page: Browser, ready: Callable[[], Any]) -> None:
    """Until something holds in the view."""
    frame = until(lambda: page.all("#view iframe"))[0]
    page.run("arguments[0].scrollIntoView()", frame)
    page.driver.switch_to.frame(frame)
    try:
        until(ready)
    finally:
        page.driver.switch_to.default_content()


def test_compare_shows_both_answers(page: Browser) -> None:
    choose(page)
    click(page, page.one("#compare"))
    finished(page)
    assert [title.text for title in page.all("#live h3")] == ["plain", "heal"]
    plain, heal = words(page, 0), words(page, 1)
    assert plain != heal
    inside(page, lambda: len(page.all(".tokens")) == 2)


def test_stop_ends_an_answer_and_the_model_still_works(page: Browser) -> None:
    choose(page)
    click(page, page.one("#ask"))
    finished(page)
    whole = words(page)
    page.run(STOP_AT_FIRST_TEXT)
    click(page, page.one("#compare"))
    finished(page, "Stopped.")
    assert len(page.all("#live h3")) == 1
    click(page, page.one("#ask"))
    finished(page)
    assert words(page) == whole


def test_downloads(page: Browser, tmp_path: Path) -> None:
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    choose(page)
    click(page, page.one("#compare"))
    finished(page)
    links = until(lambda: page.all("#links a"))
    assert [link.get_attribute("download") for link in links] == [
        "answer.html", "plain.safetensors", "heal.safetensors",
    ]  # fmt: skip
    texts = [words(page, 0), words(page, 1)]
    for link in links:
        click(page, link)
        until((tmp_path / link.get_attribute("download")).is_file)
    traces = [Trace.load(tmp_path / f"{name}.safetensors") for name in ("plain", "heal")]
    assert [" ".join(trace.text.split()) for trace in traces] == texts
    page.open(tmp_path / "answer.html")
    assert len(page.all(".tokens")) == 2
    assert page.problems() == []


# ── pictures that cannot be used ──────────────────────────────────────────────────────────────────────


def test_no_picture(page: Browser) -> None:
    click(page, page.one("#ask"))
    finished(page, "there is no picture")
    assert page.one("#status [role=alert]").is_displayed()


def test_a_broken_picture(page: Browser, tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\nno picture at all")
    upload(page, path)
    until(lambda: "broken.png cannot be read as an image" in page.text("#status"))
    assert "Traceback" not in page.text("body")
    choose(page)  # the page still works
    click(page, page.one("#ask"))
    finished(page)


def test_too_many_pixels(page: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(40_000))
    assert path.stat().st_size < 1_000_000
    upload(page, path)
    until(lambda: "bomb.png has" in page.text("#status"))
    assert "pixels" in page.text("#status")


def bomb(side: int) -> bytes:
    """A PNG of 1 bit per pixel that is small as a file."""
    rows = zlib.compressobj()
    data = b"".join([*(rows.compress(bytes(1 + side // 8)) for _ in range(side)), rows.flush()])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_too_many_bytes(page: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.bmp"
    with path.open("wb") as file:
        Image.new("RGB", (8, 8)).save(file, "BMP")
        file.truncate(MOST_BYTES + 1)
    upload(page, path)
    until(lambda: "exceed the maximum allowed size of 20" in page.text("body"))
    assert not page.all("#picture img")


# ── users ─────────────────────────────────────────────────────────────────────────────────────────────


def test_two_users_take_turns(page: Browser, app: App) -> None:
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("window")
    second = page.driver.current_window_handle
    try:
        load(page, app)
        choose(page)
        page.run(WATCH)
        page.driver.switch_to.window(first)
        choose(page, 0)
        page.run(WATCH)
        click(page, page.one("#compare"))
        page.driver.switch_to.window(second)
        click(page, page.one("#ask"))
        finished(page)
        later = page.run("return window.seen")
        page.driver.switch_to.window(first)
        finished(page)
        earlier = page.run("return window.seen")
        assert "horse" in page.text("#live")
        began = next(one["at"] for one in later if one["status"].startswith("Generating"))
        ended = next(one["at"] for one in earlier if one["status"].startswith("Done"))
        waited = next(one["at"] for one in later if one["status"].startswith("Waiting"))
        assert waited < ended, "the second question came too late to wait"
        assert began > ended - 300  # what the browser shows arrives a little later
    finally:
        page.driver.switch_to.window(second)
        page.driver.close()
        page.driver.switch_to.window(first)


def test_leaving_frees_the_model(page: Browser, app: App) -> None:
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("window")
    load(page, app)
    choose(page)
    click(page, page.one("#compare"))
    until(lambda: page.all("#live .heal-text span"))
    page.driver.close()
    page.driver.switch_to.window(first)
    choose(page)
    click(page, page.one("#ask"))
    finished(page)


# ── narrow windows ────────────────────────────────────────────────────────────────────────────────────


def test_it_can_be_used_on_a_narrow_window(page: Browser) -> None:
    page.resize(390, 844)
    choose(page)
    click(page, page.one("#compare"))
    finished(page)
    until(lambda: page.all("#view iframe"))
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    for selector in (
        "#picture",
        "#question textarea",
        "#method",
        "#ask",
        "#compare",
        "#stop",
        "#live",
        "#view iframe",
    ):
        box = page.run("return arguments[0].getBoundingClientRect().toJSON()", page.one(selector))
        assert box["left"] >= 0, selector
        assert box["right"] <= 390, selector
        assert box["width"] > 60, selector
    assert page.problems() == []


def test_options_of_heal_are_off_for_other_methods(page: Browser) -> None:
    page.one("#method input").click()
    until(lambda: page.all("[role=option]"))
    click_option = next(option for option in page.all("[role=option]") if option.text.strip() == "vcd")
    click_option.click()
    until(lambda: not page.one("#alpha input[type=range]").is_enabled())
    choose(page)
    click(page, page.one("#ask"))
    finished(page)
    assert [title.text for title in page.all("#live h3")] == ["vcd"]
