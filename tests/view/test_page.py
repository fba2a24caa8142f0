"""The page: self-contained, safe with any text, bounded in size."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from heal.errors import ConfigError
from heal.view import answer_data, component, page, summary_data
from heal.view.page import program, source
from tests.view.traces import HOSTILE, plain, trace


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.found[-1][0]][-1] += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


def hostile_page() -> str:
    tokens = (HOSTILE, "${title}", "$data", *trace().tokens[3:])
    config = {"method": HOSTILE, "model": HOSTILE, HOSTILE: HOSTILE}
    messages = ({"role": "user", "content": HOSTILE},)
    one = trace(tokens=tokens, text=HOSTILE, config=config, prompt=HOSTILE, messages=messages)
    return page(answer_data({HOSTILE: one}, objects=[HOSTILE], notes=[HOSTILE]), title=HOSTILE)


def test_any_text_is_only_text() -> None:
    parsed, clean = Elements(hostile_page()), Elements(page(answer_data(trace())))
    assert [tag for tag, _ in parsed.found if tag != "p"] == [tag for tag, _ in clean.found if tag != "p"]
    (data,) = json.loads(parsed.texts["script"][0])
    (answer,) = data["answers"]
    assert (answer["name"], answer["text"]) == (HOSTILE, HOSTILE)
    assert data["title"] == HOSTILE.encode(errors="backslashreplace").decode()
    assert answer["tokens"][:3] == [HOSTILE, "${title}", "$data"]


def test_data_elements_have_no_markup_at_all() -> None:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', hostile_page(), re.DOTALL)
    assert block is not None
    assert not set("<>&\u2028") & set(block[1])
    assert block[1].isascii()


def test_the_page_needs_nothing_else() -> None:
    parsed = Elements(page(answer_data({"plain": plain(), "heal": trace()})))
    links = [value for _, attrs in parsed.found for name, value in attrs.items() if name in ("src", "href")]
    assert links == ["data:,"]
    text = program() + source("view.css")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|eval)\b", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|@import|url\(", text)


def test_the_policy_allows_this_script_and_style_only() -> None:
    text = page(answer_data(trace()))
    parsed = Elements(text)
    policy = next(a["content"] for a in parsed.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in policy
    for name, inside in (("script-src", parsed.texts["script"][1]), ("style-src", parsed.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"


def test_a_component_is_a_sandboxed_frame_with_the_same_page() -> None:
    data = answer_data({HOSTILE: trace(text=HOSTILE)})
    text = component(data, height=300, theme="dark")
    (frame,) = Elements(text).named("iframe")
    assert frame["sandbox"] == "allow-scripts"
    assert frame["height"] == "300"
    assert frame["srcdoc"] == page(data, theme="dark", layout="cell")
    assert len(Elements(text).found) == 1


def test_several_objects_make_one_page() -> None:
    text = page(answer_data(plain()), answer_data(trace(), title="second"))
    assert [one["title"] for one in json.loads(Elements(text).texts["script"][0])] == ["What is this?", "second"]


def test_a_summary_stands_above_other_views() -> None:
    rows = [["plain", HOSTILE], ["heal", "2"]]
    text = page(summary_data("figures", ["", "objects"], rows, below=["a line"]), answer_data(trace()))
    first, second = json.loads(Elements(text).texts["script"][0])
    assert (first["kind"], second["kind"]) == ("summary", "answer")
    assert first["rows"][1] == ["heal", "2"]
    assert "<p>heal | 2</p>" in text
    assert HOSTILE not in text
    with pytest.raises(ConfigError, match="has 1 cells, but there are 2 headings"):
        summary_data("figures", ["", "objects"], [["plain"]])


def test_other_formats_are_refused() -> None:
    data = answer_data(trace())
    with pytest.raises(ConfigError, match="not data of the view"):
        page({"answers": []})
    with pytest.raises(ConfigError, match="version 2 of the format; this version of heal shows 1"):
        page(data | {"version": 2})
    with pytest.raises(ConfigError, match="nothing to show"):
        page()


@pytest.mark.usefixtures("without_type_checker")
def test_other_themes_are_refused() -> None:
    with pytest.raises(ConfigError, match="theme cannot be 'pink'"):
        page(answer_data(trace()), theme="pink")  # type: ignore[arg-type]


def test_a_long_trace_of_a_large_model_stays_below_5_mb() -> None:
    long = trace(steps=512, layers=32, heads=32)
    assert 3_000_000 < len(page(answer_data(long))) < 5_000_000


def test_no_script_ends_early() -> None:
    assert "</script" not in program()
    assert "</style" not in source("view.css")
    assert "<!--" not in program()
