"""The answer view in a browser: what hover, keys, slider and switches change."""

import re
from pathlib import Path

import numpy as np
import pytest

from heal.analysis.taxonomy import HeadType
from heal.detect import Judged
from heal.detect.risk import ObjectRisk, Reason
from heal.generate import Answer
from heal.view import answer_data, component, page
from tests.browser.browser import Browser
from tests.view.traces import HOSTILE, patches, plain, trace

RIGHT, LEFT, DOWN, HOME, END = "\ue014", "\ue012", "\ue015", "\ue011", "\ue010"
STEPS = 12
PAIR = {"plain": plain(), "heal": trace()}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "pair.html"
    path.write_text(page(answer_data(PAIR, objects=["dog", "car"])))
    return path


@pytest.fixture
def opened(browser: Browser, pair: Path) -> Browser:
    browser.open(pair)
    return browser


def row(browser: Browser, name: str) -> list[str]:
    """The cells of a row of the card."""
    rows = browser.run(
        "return [...document.querySelectorAll('.card tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    return next(cells[1:] for cells in rows if cells[0].endswith(name))


def position(browser: Browser) -> list[int]:
    return [int(cell.split(" / ")[0]) - 1 for cell in row(browser, "position")]


def token(browser: Browser, answer: int, step: int) -> object:
    return browser.all(".tokens")[answer].find_element("css selector", f'[data-step="{step}"]')


def picture(browser: Browser, answer: int = 0) -> str:
    return browser.run("return document.querySelectorAll('canvas')[arguments[0]].toDataURL()", answer)


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────


def test_it_loads_without_a_word_and_asks_for_nothing(opened: Browser, pair: Path) -> None:
    opened.requests()
    opened.open(pair)
    assert opened.problems() == []
    asked = [address for address in opened.requests() if not address.startswith("data:")]
    assert asked == [pair.as_uri()]


def test_the_whole_text_is_there(opened: Browser) -> None:
    shown = [re.sub(r"\s+", " ", element.text.replace("✕", "")) for element in opened.all(".tokens")]
    assert shown == [re.sub(r"\s+", " ", "".join(one.tokens).strip()) for one in PAIR.values()]


def test_objects_are_marked(opened: Browser) -> None:
    assert [e.text for e in opened.all(".tokens")[0].find_elements("css selector", ".wrong")] == ["kite"]
    assert "".join(e.text for e in opened.all(".tokens")[0].find_elements("css selector", ".correct")) == "dogs"
    assert "1 hallucinated" in opened.all(".answer .facts")[0].text
    assert position(opened) == [5, 5]  # it starts at the first hallucinated object


@pytest.mark.parametrize("text", [HOSTILE, "‮ right to left", "\x00\x1b[31m", "&lt;b&gt;", "${x}`", "a\u2028b"])
def test_any_text_is_shown_as_it_is(browser: Browser, tmp_path: Path, text: str) -> None:
    one = trace(tokens=(text, *trace().tokens[1:]), config={"method": text, "model": text, "option": text})
    path = tmp_path / "hostile.html"
    path.write_text(
        page(answer_data({text: one}, objects=[text], notes=[text]), title=text), errors="backslashreplace"
    )
    browser.open(path)
    assert browser.problems() == []
    assert browser.run("return document.querySelectorAll('script').length") == 2
    assert browser.run("return document.images.length") == 1
    units = "return Array.from(document.querySelector(arguments[0]).textContent.split(''), c => c.charCodeAt(0))"
    expected = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").tolist()
    assert browser.run(units, ".token") == expected
    assert browser.run(units, ".lead") == expected


# ── what follows the pointer and the keys ─────────────────────────────────────────────────────────────


def test_hover_shows_a_token_until_the_pointer_leaves(opened: Browser) -> None:
    opened.hover(token(opened, 0, 2))
    assert position(opened) == [2, 2]
    assert row(opened, "token") == ["shows", "shows"]
    logprobs = [f"−{-one.logprobs[2]:.2f}" for one in PAIR.values()]
    assert row(opened, "log-prob.") == logprobs
    assert row(opened, "visual share") == [
        "–" if np.isnan(x := one.mean_alpha()[2]) else f"{x:.2f}" for one in PAIR.values()
    ]
    opened.hover(opened.one("h1"))
    assert position(opened) == [5, 5]


def test_the_card_counts_the_types(opened: Browser) -> None:
    opened.hover(token(opened, 1, 7))
    for kind in HeadType:
        expected = [int((one.types[7] == int(kind)).sum()) for one in PAIR.values()]
        if any(expected):
            name = kind.label.replace("info-", "information-")
            assert [int(cell) for cell in row(opened, name)] == expected


@pytest.fixture(scope="module")
def risky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reasons = (Reason("visual share <of> the heads", 1.25), Reason("earlier mentions", -0.5))
    kite = ObjectRisk("kite", "kite", (23, 27), (5, 6), 0.9, reasons)
    dogs = ObjectRisk("dogs", "dog", (36, 40), (8, 10), 0.4, reasons[1:])
    one = trace()
    answer = Answer(one.text, (), (), "stop", 9, 1.0, 0.5, None, one, (), Judged((0.3,) * STEPS, (kite, dogs), 0.5))
    path = tmp_path_factory.mktemp("pages") / "risky.html"
    path.write_text(page(answer_data(answer)))
    return path


def test_a_doubtful_word_says_why(browser: Browser, risky: Path) -> None:
    browser.open(risky)
    token(browser, 0, 5).click()  # type: ignore[attr-defined]
    assert browser.problems() == []
    assert row(browser, "risk") == ["0.90"]
    assert "kite: doubtful, risk 0.90" in [head.text for head in browser.all(".card h4")]
    reasons = [line.text.split("\n") for line in browser.all(".reasons li")]
    assert reasons == [["visual share <of> the heads", "+1.3"], ["earlier mentions", "−0.5"]]
    browser.hover(token(browser, 0, 9))  # the second token of the word
    assert "dog: not doubtful, risk 0.40" in [head.text for head in browser.all(".card h4")]
    assert len(browser.all(".reasons li")) == 1
    browser.hover(token(browser, 0, 2))
    assert (row(browser, "risk"), browser.all(".reasons")) == (["–"], [])


def test_only_object_words_are_shaded_by_risk(browser: Browser, risky: Path) -> None:
    browser.open(risky)
    shaded = [
        step
        for step, span in enumerate(browser.all(".tokens .token"))
        if span.value_of_css_property("background-color") != "rgba(0, 0, 0, 0)"
    ]
    assert shaded == [5, 8, 9]


def test_the_likeliest_tokens_are_listed(opened: Browser) -> None:
    opened.hover(token(opened, 1, 2))
    one = PAIR["heal"]
    lines = [line.text.split("\n") for line in opened.all(".alternatives li")]
    expected = [("shows", float(one.logprobs[2]))]
    expected += [
        (text.strip(), float(value))
        for text, value in zip(one.alternative_tokens[2], one.alternative_logprobs[2], strict=True)
    ]
    expected.sort(key=lambda pair: -pair[1])
    assert lines == [[text, f"{100 * np.exp(value):.1f} %"] for text, value in expected]
    assert opened.text(".alternatives .taken .word") == "shows"


def test_a_click_stays(opened: Browser) -> None:
    token(opened, 1, 8).click()  # type: ignore[attr-defined]
    opened.hover(opened.one("h1"))
    assert position(opened) == [8, 8]
    assert "active" in opened.all(".card th[scope=col]")[1].get_attribute("class")


def test_keys_move_between_tokens_objects_and_answers(opened: Browser) -> None:
    opened.run("document.querySelector('.tokens').focus()")
    for key, expected in ((RIGHT, 6), (LEFT, 5), (HOME, 0), ("n", 5), ("n", 8), ("p", 5), (END, STEPS - 1)):
        opened.press(key)
        assert position(opened)[0] == expected, key
    opened.press(HOME, DOWN)
    assert opened.run("return document.activeElement === document.querySelectorAll('.tokens')[1]")
    opened.press(RIGHT)
    assert position(opened) == [1, 1]
    assert opened.run("return document.querySelector('[aria-live]').textContent").startswith(
        "heal, token 2 of 12: image"
    )


def test_the_slider_moves_the_step_and_the_map(opened: Browser) -> None:
    slider = opened.one("input[type=range]")
    before = picture(opened)
    opened.run("arguments[0].focus()", slider)
    opened.press(HOME)
    assert position(opened)[0] == 0
    assert opened.one("canvas").get_attribute("data-step") == "0"
    assert picture(opened) != before  # types were refreshed in between
    opened.press(*[RIGHT] * 3)
    assert position(opened)[0] == 3
    assert opened.run("return arguments[0].getAttribute('aria-valuetext')", slider).startswith("plain, token 4")
    cursor = opened.one(".course .cursor")
    at = float(cursor.get_attribute("x1"))
    opened.press(RIGHT)
    assert float(opened.one(".course .cursor").get_attribute("x1")) > at


def test_play_runs_to_the_end(opened: Browser) -> None:
    opened.run("document.querySelector('.tokens').focus()")
    opened.press(END, LEFT, LEFT)
    opened.one(".play").click()
    assert opened.one(".play").get_attribute("aria-label") == "pause"
    wait(lambda: position(opened)[0] == STEPS - 1)
    wait(lambda: opened.one(".play").get_attribute("aria-label") == "play")


def wait(ready: object, seconds: float = 5) -> None:
    import time

    end = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


# ── heads ─────────────────────────────────────────────────────────────────────────────────────────────


def readout(browser: Browser, answer: int) -> dict[str, str]:
    pairs = browser.all(".readout")[answer].find_elements("css selector", ".pair")
    return {
        pair.find_element("css selector", ".symbol").text: pair.find_element("css selector", "b").text
        for pair in pairs
    }


def test_a_click_on_a_head_shows_its_measurements(opened: Browser) -> None:
    token(opened, 1, 7).click()  # type: ignore[attr-defined]
    canvas = opened.all("canvas")[1]
    opened.run("arguments[0].focus()", canvas)
    opened.press(*[LEFT] * 12)  # the first head
    opened.press(DOWN, RIGHT, RIGHT)
    assert canvas.get_attribute("data-head") == "6"
    assert "layer 1, head 2" in opened.all(".readout")[1].text
    one = PAIR["heal"]
    found = readout(opened, 1)
    expected = {
        "Ivis": one.visual[7, 1, 2], "Ilang": one.language[7, 1, 2], "β": one.beta[7, 1, 2], "γ": one.gamma[7, 1, 2],
        "Isyn": one.total[7, 1, 2] - one.visual[7, 1, 2] - one.language[7, 1, 2],
        "αvis": one.alpha_vis[7, 1, 2], "contribution": one.contribution[5, 1, 2],
    }  # fmt: skip
    for name, value in expected.items():
        assert found[name].replace("−", "-") == ("–" if np.isnan(value) else f"{value:.3f}"), name
    assert HeadType(one.types[7, 1, 2]).label.replace("info-", "information-") in opened.all(".readout")[1].text
    assert len(opened.all(".plots")[1].find_elements("css selector", "svg")) == 4
    assert len(opened.all(".plots")[0].find_elements("css selector", "svg")) == 3  # plain has no factors


def test_the_pointer_looks_at_a_head_and_a_click_chooses_it(opened: Browser) -> None:
    from selenium.webdriver import ActionChains

    canvas = opened.one("canvas")
    opened.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    chosen = canvas.get_attribute("data-head")
    width, height = canvas.size["width"], canvas.size["height"]
    to = ActionChains(opened.driver).move_to_element_with_offset(canvas, 26 + 14 - width / 2, 16 + 14 - height / 2)
    to.perform()
    assert opened.text(".readout .place") == "layer 0, head 0"
    assert canvas.get_attribute("data-head") == chosen
    to.click().perform()
    assert canvas.get_attribute("data-head") == "0"


def test_a_clicked_head_shows_where_it_looks(browser: Browser, tmp_path: Path) -> None:
    own = patches()
    path = tmp_path / "page.html"
    path.write_text(page(answer_data({"plain": plain(), "heal": trace(patches=own)})))
    browser.open(path)
    overlay = browser.one("canvas.patches")
    assert not overlay.is_displayed()
    token(browser, 1, 7).click()  # type: ignore[attr-defined]
    browser.run("arguments[0].focus()", browser.all("canvas.map")[1])
    browser.press(*[LEFT] * 12)
    browser.press(DOWN, RIGHT)  # layer 1, head 1
    assert browser.problems() == []
    assert overlay.is_displayed()
    levels, unit = own.levels[7, 1, 1].astype(int), float(own.unit[7, 1, 1])
    parts = [f"{100 * unit * number:.1f} %" for number in (levels.sum(), 255)]
    said = f"{parts[0]} of its attention is on the picture, at most {parts[1]} on one patch"
    assert browser.text(".patch-line") == f"heal, layer 1, head 1 at “two”: {said}"
    drawn = "const c = arguments[0]; return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    dark = np.array(browser.run(drawn, overlay)).reshape(2, 3, 4)[..., 3]
    np.testing.assert_allclose(dark, 255 * 0.78 * (1 - levels.reshape(2, 3) / 255), atol=1)
    outer, inner = browser.one(".picture").rect, overlay.rect
    assert inner["width"] == pytest.approx(outer["width"] / 2, abs=2)
    browser.hover(token(browser, 0, 3))  # the plain answer has no patches
    assert (overlay.is_displayed(), browser.text(".patch-line")) == (False, "not recorded for this answer")
    browser.hover(token(browser, 1, 3))
    assert "at “a”" in browser.text(".patch-line")
    browser.one(".show-patches").click()
    assert not overlay.is_displayed()


def test_every_colouring_draws_another_map(opened: Browser) -> None:
    from selenium.webdriver.support.ui import Select

    choice = Select(opened.one("#colouring"))
    names = [str(option.get_attribute("value")) for option in choice.options]
    assert names == ["type", "share", "total", "visual", "language", "synergy", "contribution", "beta", "gamma"]
    pictures = set()
    for name in names:
        choice.select_by_value(name)
        pictures.add(picture(opened, 1))
        assert bool(opened.all(".ramp")) == (name != "type")
    assert len(pictures) == len(names)


# ── switches ──────────────────────────────────────────────────────────────────────────────────────────


def test_shading_switches(opened: Browser) -> None:
    def backgrounds() -> list[str]:
        return [span.value_of_css_property("background-color") for span in opened.all(".tokens .token")]

    found = {"share": backgrounds()}
    for name in ("surprise", "none"):
        opened.run("arguments[0].click()", opened.one(f"input[value={name}]"))
        wait(lambda: opened.run("return document.getAnimations().length") == 0)
        found[name] = backgrounds()
    assert len(set(map(tuple, found.values()))) == 3
    assert set(found["none"]) == {"rgba(0, 0, 0, 0)"}
    assert "1 − its probability" not in opened.text(".course figcaption")


def test_differences_are_outlined(browser: Browser, tmp_path: Path) -> None:
    other = trace(tokens=(" A", *trace().tokens[1:5], " red", *trace().tokens[5:11]))
    path = tmp_path / "page.html"
    path.write_text(page(answer_data({"plain": plain(), "heal": other})))
    browser.open(path)

    def differing() -> list[list[str]]:
        return [
            [span.text for span in box.find_elements("css selector", ".token.differs")]
            for box in browser.all(".tokens")
        ]

    assert differing() == [["The", "</s>"], ["A", "red"]]
    browser.one(".compare").click()
    assert differing() == [[], []]
    token(browser, 0, 5).click()  # type: ignore[attr-defined]
    assert position(browser) == [5, 6]  # the same word stands one token later


def test_dark_by_preference_and_by_button(opened: Browser) -> None:
    def ground() -> str:
        return opened.run("return getComputedStyle(document.documentElement).backgroundColor")

    light, drawn = ground(), picture(opened)
    opened.media(scheme="dark")
    wait(lambda: ground() != light)
    wait(lambda: picture(opened) != drawn)
    dark = ground()
    opened.one(".theme").click()
    assert ground() == light
    opened.one(".theme").click()
    assert ground() == dark


def test_help_opens(opened: Browser) -> None:
    assert not opened.one(".help-text").is_displayed()
    opened.one(".help summary").click()
    assert "previous, next token" in opened.text(".help-text")


# ── sizes, print, frames ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [320, 390, 700, 1400, 2200])
def test_nothing_is_wider_than_the_window(browser: Browser, pair: Path, width: int, shots: Path) -> None:
    browser.resize(width)
    browser.open(pair)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    small = browser.run(
        "return [...document.querySelectorAll('main *')].filter(e => e.childElementCount === 0 && "
        "e.textContent.trim() && e.checkVisibility() && !e.closest('svg, sub, sup, option') && "
        "parseFloat(getComputedStyle(e).fontSize) < 10)"
        ".map(e => e.className)"
    )
    assert small == []
    browser.screenshot(shots / f"answer-{width}.png")


def test_it_prints(opened: Browser, shots: Path) -> None:
    opened.media("print", "dark")
    assert not opened.one(".theme").is_displayed()
    assert not opened.one("input[type=range]").is_displayed()
    assert opened.one("canvas").is_displayed()
    printed = opened.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 20_000


def test_every_control_has_a_name_and_is_reached_by_tab(opened: Browser) -> None:
    opened.run("document.body.focus()")
    reached = []
    for _ in range(25):
        opened.press("\ue004")
        found = opened.run(
            "const e = document.activeElement; return e === document.body ? null : "
            "[e.tagName, e.getAttribute('aria-label') || e.closest('label')?.textContent || e.textContent.trim()]"
        )
        if found is None:
            break
        assert found[1], found
        reached.append(found[0])
    assert {"SUMMARY", "BUTTON", "INPUT", "DIV", "SELECT", "CANVAS"} <= set(reached)


def test_a_component_runs_in_its_frame_and_reaches_nothing(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "host.html"
    path.write_text('<!doctype html><meta charset="utf-8"><title>host</title><div id="cell"></div>')
    browser.open(path)
    # scripts in innerHTML do not run, but those of a frame do
    browser.run("document.getElementById('cell').innerHTML = arguments[0]", component(answer_data(PAIR), height=400))
    browser.driver.switch_to.frame(browser.one("iframe"))
    wait(lambda: len(browser.all("canvas")) == 2)
    browser.hover(token(browser, 0, 3))
    assert position(browser) == [3, 3]
    assert browser.run("try { return String(parent.document.title) } catch (e) { return e.name }") == "SecurityError"
    browser.driver.switch_to.default_content()
    assert [text for text in browser.problems() if "SecurityError" not in text] == []
