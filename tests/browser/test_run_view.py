"""The run view in a browser: the table sorts, filters choose samples, failures are listed."""

from pathlib import Path

import pytest

from heal.view import page, run_data
from tests.bench.folders import finished
from tests.browser.browser import Browser

FAILING = 2


def said(label: str, method: str) -> str | None:
    return {"plain": {"yes": "Yes", "no": "No"}[label], "heal": "Yes"}[method]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run = folder / "run"
    finished(run, said)
    out = folder / "page.html"
    out.write_text(page(run_data(run)))
    return out


@pytest.fixture
def opened(browser: Browser, path: Path) -> Browser:
    browser.open(path)
    return browser


def methods(browser: Browser) -> list[str]:
    return [cell.text for cell in browser.all(".run-results tbody th")]


def samples(browser: Browser) -> int:
    return len(browser.all(".sample-list li"))


def test_it_loads_without_a_word(opened: Browser) -> None:
    assert opened.problems() == []
    assert opened.text("h1") == "run"


def test_the_table_sorts(opened: Browser) -> None:
    assert methods(opened) == ["plain", "heal"]
    head = next(cell for cell in opened.all(".results thead th") if cell.text.startswith("accuracy"))
    button = head.find_element("css selector", "button")
    button.click()
    assert (methods(opened), head.get_attribute("aria-sort")) == (["heal", "plain"], "ascending")
    button.click()
    assert (methods(opened), head.get_attribute("aria-sort")) == (["plain", "heal"], "descending")


def test_figures_have_intervals_and_differences(opened: Browser) -> None:
    cells = {c.text.split()[0]: i for i, c in enumerate(opened.all(".results thead th"))}
    heal = opened.all(".run-results tbody tr")[1].find_elements("css selector", "th, td")
    value, *interval, difference = heal[cells["accuracy"]].text.split("\n")
    assert difference == f"−{100 - float(value):.1f} *"
    assert interval == []  # questions about one picture have no interval


def test_filters_choose_samples(opened: Browser) -> None:
    every = samples(opened)
    assert opened.text(".count") == f"{every} of {every}"
    opened.one("input[name=hallucinated]").click()
    wrong = samples(opened)
    assert 0 < wrong < every
    assert opened.text(".count") == f"{wrong} of {every}"
    assert all("✕" in row.text for row in opened.all(".sample-list li"))
    opened.one("input[name=hallucinated]").click()
    assert samples(opened) == every
    opened.one("input[name=methods-differ]").click()
    assert samples(opened) == wrong  # both say yes to the others


def test_a_category(opened: Browser) -> None:
    from selenium.webdriver.support.ui import Select

    every = samples(opened)
    Select(opened.one("select.category")).select_by_visible_text("answer no")
    assert 0 < samples(opened) < every
    assert "label: no" in opened.text(".sample")


def test_a_sample_opens_with_all_its_answers(opened: Browser) -> None:
    row = opened.all(".sample-list li")[1]
    row.click()
    assert row.get_attribute("aria-selected") == "true"
    assert opened.text(".prompt").startswith("Is there a")
    assert len(opened.all(".sample img")) == 1
    names = ", ".join(head.text for head in opened.all(".sample .answer h3"))
    assert set(names.split(", ")) == {"plain", "heal"}
    first = opened.text(".prompt")
    opened.all(".pager button")[1].click()
    assert opened.text(".prompt") != first
    opened.run("document.querySelector('.sample-list').focus()")
    opened.press("\ue013")
    assert opened.text(".prompt") == first


def test_failures_are_listed(browser: Browser, tmp_path: Path) -> None:
    run = finished(tmp_path / "run", lambda label, method: "Yes" if method == "plain" else None)
    out = tmp_path / "page.html"
    out.write_text(page(run_data(run)))
    browser.open(out)
    assert "there is no image 7.jpg" in browser.text(".failures")
    assert "0 of" in browser.all(".run-results tbody tr")[1].text
    assert "heal failed" in browser.text(".sample")
    assert browser.problems() == []


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_window(browser: Browser, path: Path, width: int, shots: Path) -> None:
    browser.resize(width)
    browser.open(path)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.screenshot(shots / f"run-{width}.png")
