"""Escaping of external text for a terminal, a line or a Markdown cell."""

import json

import pytest

from heal.escape import LONGEST, json_text, markdown_cell, one_line, visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\rb\bc\x00d\x7fe\x9bf", "a\\x0db\\x08c\\x00d\\x7fe\\x9bf"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("half \udcff", "half \\udcff"),
        ("two\nlines\tand α, 猫, 🐈", "two\nlines\tand α, 猫, 🐈"),
        ("[red]x[/]", "[red]x[/]"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_one_line() -> None:
    assert one_line("a\nb\r\n\tc  d\u2028e") == "a b c d\\u2028e"
    assert one_line("short", LONGEST) == "short"
    cut = one_line("begin " + "x" * 200_000 + " what to do", LONGEST)
    assert len(cut) == LONGEST
    assert cut.startswith("begin x")
    assert " … " in cut
    assert cut.endswith("x what to do")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("heal:alpha=0.5", "heal:alpha=0.5"),
        ("a|b\nc", "a\\|b c"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)&gt;"),
        ("[click](http://x)", "[click]\\(http://x)"),
        ("![x][y]", "![x]\\[y]"),
        ("80.00 [79.00, 81.00]", "80.00 [79.00, 81.00]"),
        ("*a* _b_ `c` ~~d~~ \\| $e$ &amp;", "\\*a\\* \\_b\\_ \\`c\\` \\~\\~d\\~\\~ \\\\\\| \\$e\\$ &amp;amp;"),
    ],
)
def test_a_markdown_cell_stays_a_cell(text: str, expected: str) -> None:
    assert markdown_cell(text) == expected


def test_json_keeps_its_value() -> None:
    value = "\x1b[31m \x9b \u202e \ud800 α 🐈 \n"
    text = json_text(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert visible(text) == text
    assert "α 🐈" in text
