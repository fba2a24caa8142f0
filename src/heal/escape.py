"""Text from outside (answers, file names, data) made safe where it is shown: a terminal, a line, a Markdown cell."""

from __future__ import annotations

import re

LONGEST = 500
"""Characters of an error or warning; the rest says nothing more to a person."""

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = re.compile(f"[{_CONTROL}{_DIRECTION}\u2028\u2029\ufeff\ud800-\udfff]")
_MARKDOWN = re.compile(r"[\\`*_|~$]|(?<=\])[(\[:]")
"""Brackets alone are no link."""
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def visible(text: object) -> str:
    """Characters that steer a terminal, or that it cannot show, as `\\x1b`; newlines and tabs stay."""
    return _INVISIBLE.sub(lambda found: _code(found[0]), str(text))


def one_line(text: object, longest: int | None = None) -> str:
    """The same without line breaks, and cut in the middle of what is too long."""
    line = " ".join(visible(str(text).replace("\r", "\n")).split())
    if longest is None or len(line) <= longest:
        return line
    head = 2 * longest // 3
    return f"{line[:head]} … {line[head + 3 - longest :]}"


def markdown_cell(text: object) -> str:
    """Text that stays what it is in a cell of a Markdown table: no markup, no HTML, no further cells."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return "".join(_HTML.get(sign, sign) for sign in escaped)


def json_text(text: str) -> str:
    """Escapes of JSON for what `json.dumps` leaves as it is but a terminal would obey; the value is the same."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _code(sign: str) -> str:
    number = ord(sign)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
