"""Escape external text (answers, file names, data) for a terminal, a single line or a Markdown cell."""

from __future__ import annotations

import re

LONGEST = 500
"""Maximum length of an error or warning in characters."""

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = re.compile(f"[{_CONTROL}{_DIRECTION}\u2028\u2029\ufeff\ud800-\udfff]")
_MARKDOWN = re.compile(r"[\\`*_|~$]|(?<=\])[(\[:]")
"""Brackets alone are not a link."""
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def visible(text: object) -> str:
    """Escape control and invisible characters as `\\x1b`. Newlines and tabs are kept."""
    return _INVISIBLE.sub(lambda found: _code(found[0]), str(text))


def one_line(text: object, longest: int | None = None) -> str:
    """`visible` without line breaks. Text that is too long is cut in the middle."""
    line = " ".join(visible(str(text).replace("\r", "\n")).split())
    if longest is None or len(line) <= longest:
        return line
    head = 2 * longest // 3
    return f"{line[:head]} … {line[head + 3 - longest :]}"


def markdown_cell(text: object) -> str:
    """Escape text for a cell of a Markdown table: no markup, no HTML, no further cells."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return "".join(_HTML.get(sign, sign) for sign in escaped)


def json_text(text: str) -> str:
    """Escape control characters that `json.dumps` does not escape. The JSON value is the same."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _code(sign: str) -> str:
    number = ord(sign)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
