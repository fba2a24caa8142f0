"""Unusual values: numbers, strings, paths, and mutations of JSON, text and bytes."""

from __future__ import annotations

import copy
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.fuzz.oracle import Draw

NUMBERS = (
    "0", "1", "2", "3", "5", "0.5", "0.4", "-0", "-1", "-0.5", "1e400", "-1e400", "1e-400", "nan", "NaN", "-nan",
    "inf", "-inf", "Infinity", "1_000", "0x10", "0b1", "1e3", "9" * 30, "9" * 5000, "1.5", "+1", " 1", "1 ", "",
    "true", "None", "none", "½", "²", "٣", "１", "1,5", "1;2", "--1", "1e", ".", "-", "1/2", "10%", "2147483648",
    "9223372036854775808", "18446744073709551616", "1000000", "0.9999999999999999999", "5e-324",
)  # fmt: skip
TEXTS = (
    "", " ", "\t", "\n", "x", "a b", "ü", "日本語", "😀", "e\u0301", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x07",
    "\x08", "\r", "\x7f", "\x9b31m", "\u2028", "\u202etxt", "\ufeff", "\u200b", "<image>", "<s>", "</s>", "<pad>",
    "<|im_end|>", "%s", "%n", "{}", "{0}", "{{ x }}", "$(x)", "`x`", "a,b=c", "a=b", "=", ":", "::", ",", "+", "-",
    "--", "-h", "--help", "'", '"', "\\", "\\n", "/", "..", ".", "~", "*", "null", "None", "nan", "NaN", "true",
    "0", "x" * 10_000, "ß" * 300, "a\nb", "a\\tb",
)  # fmt: skip
NOT_IN_ARGUMENTS = ("\x00", "\ud800")
UNDECODABLE = "\udcff"
"""The form of an invalid UTF-8 byte in a command line."""
CONTROL = frozenset(map(chr, (*range(9), 11, 12, *range(14, 32), *range(127, 160))))
"""Control characters other than tabs and line ends."""


def number(draw: Draw) -> str:
    if draw.often(0.3):
        return str(
            draw.choice((draw.randint(-3, 20), round(draw.uniform(-2, 3), 3), draw.randint(-(10**18), 10**18)))
        )
    return draw.choice(NUMBERS)


def text(draw: Draw) -> str:
    if draw.often(0.2):
        return "".join(draw.choice(TEXTS)[:40] for _ in range(draw.randint(2, 4)))
    return draw.choice(TEXTS)


def argument(draw: Draw) -> str:
    """A string that a command line can hold."""
    return UNDECODABLE if draw.often(0.03) else draw.choice((number, text))(draw)


def value(draw: Draw) -> Any:
    """A Python value that a caller might pass by mistake."""
    return draw.choice((
        lambda: number(draw), lambda: text(draw), lambda: None, lambda: True, lambda: False,
        lambda: draw.randint(-5, 5), lambda: draw.uniform(-2, 2), lambda: float("nan"), lambda: float("inf"),
        lambda: -float("inf"), lambda: 10**30, lambda: [], lambda: (), lambda: {}, lambda: b"x", lambda: [1, 2],
        lambda: (0, 1), lambda: {"a": 1}, lambda: 1j, lambda: object, lambda: Path("x"),
    ))()  # fmt: skip


# ── paths ─────────────────────────────────────────────────────────────────────────────────────────────────


def path_to_read(draw: Draw, good: Path | None = None) -> str:
    """A path to a file, or to nothing, a folder, a device, a pipe, or a link to itself."""
    place = draw.place
    kind = draw.choice((
        "good", "good", "good", "missing", "folder", "null", "zero", "full", "pipe", "loop", "dangling", "link",
        "empty", "odd", "long", "below a file", "text",
    ))  # fmt: skip
    if kind == "good" and good is not None:
        return str(good)
    if kind in ("null", "zero", "full"):
        return f"/dev/{kind}"
    name = place / f"{kind.replace(' ', '-')}-{draw.randint(0, 999)}"
    if kind == "folder":
        name.mkdir(exist_ok=True)
    elif kind == "pipe":
        os.mkfifo(name)
    elif kind == "loop":
        name.symlink_to(name.name)
    elif kind == "dangling":
        name.symlink_to("nothing")
    elif kind == "link" and good is not None:
        name.symlink_to(good)
    elif kind == "empty":
        name.write_bytes(b"")
    elif kind == "text":
        name.write_text("no picture, no JSON\n")
    elif kind == "odd":
        return argument(draw)
    elif kind == "long":
        return str(place / ("n" * 300))
    elif kind == "below a file":
        name.write_text("x")
        return str(name / "x")
    return str(name)


def path_to_write(draw: Draw, suffix: str = "") -> str:
    """A path inside the folder of the input, because writing to a device as root would replace it."""
    place = draw.place
    kind = draw.choice(("new", "new", "deep", "folder", "file", "loop", "below a file", "long", "unicode", "control"))
    name = place / f"{kind.replace(' ', '-')}{suffix}"
    if kind == "deep":
        return str(place / "a" / "b" / f"c{suffix}")
    if kind == "folder":
        name.mkdir(exist_ok=True)
    elif kind == "file":
        name.write_text("what was there")
    elif kind == "loop" and not name.is_symlink():
        name.symlink_to(name.name)
    elif kind == "below a file":
        name.write_text("x")
        return str(name / "x")
    elif kind == "long":
        return str(place / ("n" * 300))
    elif kind == "unicode":
        return str(place / f"日本語 😀{suffix}")
    elif kind == "control":
        return str(place / f"a\x1b[31m\n{suffix}")
    return str(name)


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────

Change = Literal["value", "removed", "structure", "none"]
"""The effect of a mutation: a value replaced by one of its type, records removed, another change, or none."""


@dataclass(frozen=True)
class Mutated:
    content: bytes
    change: Change
    how: str


def odd_json(draw: Draw) -> Any:
    return draw.choice((
        None, True, False, 0, -1, 1.5, 10**30, float("nan"), float("inf"), "", " ", "x", "nan", [], {}, [None],
        [[]], {"a": None}, "\x1b[31m", "\u202e", "9" * 100, ["x", 1], "\ud800", "\x00",
    ))  # fmt: skip


def nodes(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All locations in a JSON value, as sequences of keys."""
    found = [at] if at else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += nodes(inner, (*at, key))
    return found


def other_of_its_type(draw: Draw, old: Any) -> Any:
    """Another plausible value of the same type."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return old + draw.randint(1, 5)
    if isinstance(old, float):
        return abs(old) + draw.random()
    return f"{old} more" if isinstance(old, str) else copy.deepcopy(old)


def _alike(old: Any, new: Any) -> bool:
    """Whether a reader cannot detect the change: a string for a string, a number for a number, …"""
    if isinstance(old, str) and isinstance(new, str):
        return bool(old.strip() and new.strip())
    if isinstance(old, list):
        return new == []
    numbers = [x for x in (old, new) if isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)]
    return len(numbers) == 2 or (isinstance(old, bool) and isinstance(new, bool))


def mutate_json(draw: Draw, value: Any) -> tuple[Any, Change, str]:
    """A copy with one change."""
    value = copy.deepcopy(value)
    places = nodes(value)
    if not places:
        return odd_json(draw), "structure", "the whole value"
    at = draw.choice(places)
    owner = value
    for key in at[:-1]:
        owner = owner[key]
    key, where = at[-1], "/".join(map(str, at))
    how = draw.choice(("odd", "odd", "odd", "delete", "rename", "other", "type", "copy", "wrap", "extra"))
    if how == "odd":
        old, owner[key] = owner[key], odd_json(draw)
        return value, "value" if _alike(old, owner[key]) else "structure", f"{where} became {owner[key]!r}"
    if how == "delete":
        change: Change = "structure" if isinstance(owner, dict) else "removed" if len(at) == 1 else "value"
        del owner[key]
        return value, change, f"{where} deleted"
    if how == "rename" and isinstance(owner, dict):
        name = draw.choice((f"{key}x", key.upper(), f" {key}", ""))
        if name not in owner:
            owner[name] = owner.pop(key)
            return value, "structure", f"{where} renamed {name!r}"
    if how == "type":
        old = owner[key]
        owner[key] = str(old) if not isinstance(old, str) else len(old)
        return value, "structure", f"{where} became {owner[key]!r}"
    if how == "copy" and isinstance(owner, list):
        owner.insert(draw.randint(0, len(owner)), copy.deepcopy(owner[key]))
        return value, "structure", f"{where} doubled"
    if how == "wrap":
        owner[key] = draw.choice(([owner[key]], {"value": owner[key]}))
        return value, "structure", f"{where} wrapped"
    if how == "extra" and isinstance(owner, dict):
        owner["something"] = odd_json(draw)
        return value, "structure", f"{where}: a key beside it"
    owner[key] = other_of_its_type(draw, owner[key])
    return value, "value", f"{where} became {owner[key]!r}"


def dump(value: Any, lines: bool) -> bytes:
    """The content of a file; `lines` for JSON Lines."""
    text = "".join(json.dumps(v) + "\n" for v in value) if lines and isinstance(value, list) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


def mutate_document(draw: Draw, value: Any, lines: bool) -> Mutated:
    """A JSON file with a change in its content or its encoding."""
    if draw.often(0.7):
        mutated, change, how = mutate_json(draw, value)
        return Mutated(dump(mutated, lines), change, how)
    return mutate_text(draw, dump(value, lines))


# ── text and bytes ────────────────────────────────────────────────────────────────────────────────────────


def mutate_text(draw: Draw, content: bytes) -> Mutated:
    """Typical damage of a text file."""
    kind = draw.choice((
        "bom", "crlf", "utf-16", "latin-1", "cut", "nul", "flip", "blank lines", "line doubled", "line removed",
        "deep", "digits", "empty", "spaces", "no end", "garbage",
    ))  # fmt: skip
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    unchanged: dict[str, bytes] = {
        "bom": b"\xef\xbb\xbf" + content,
        "crlf": content.replace(b"\n", b"\r\n"),
        "blank lines": content.replace(b"\n", b"\n\n"),
        "no end": content.rstrip(b"\n"),
        "spaces": b"\n  " + content + b"  \n",
        "utf-16": content.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass"),
    }
    if kind in unchanged:
        return Mutated(unchanged[kind], "structure", kind)
    if kind == "cut":
        size = draw.randrange(len(content)) if content else 0
        return Mutated(content[:size], "removed", f"cut to {size} of {len(content)} bytes")
    if kind == "line removed":
        return Mutated(b"\n".join(lines[:at] + lines[at + 1 :]), "removed", f"line {at + 1} removed")
    if kind == "line doubled":
        return Mutated(b"\n".join([*lines[:at], lines[at], *lines[at:]]), "structure", f"line {at + 1} doubled")
    if kind == "flip":
        return Mutated(flip(draw, content), "value", "bytes flipped")
    broken = {
        "latin-1": content.replace(b"a", b"\xe9", 1),
        "nul": content[: len(content) // 2] + b"\x00" + content[len(content) // 2 :],
        "deep": b"[" * 100_000,
        "digits": content.replace(b"1", b"1" * 5000, 1),
        "empty": b"",
        "garbage": draw.randbytes(200),
    }
    return Mutated(broken[kind], "value" if kind in ("latin-1", "nul", "digits") else "structure", kind)


def flip(draw: Draw, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def mutate_bytes(draw: Draw, content: bytes) -> Mutated:
    """A binary file with bytes flipped, lost, added or moved, often near its start, where lengths are stored."""
    kind = draw.choice(("flip", "flip", "head", "head", "cut", "insert", "delete", "repeat", "zeros", "tail"))
    data, at = bytearray(content), draw.randrange(max(1, len(content)))
    if kind == "cut":
        return Mutated(content[:at], "removed", f"cut to {at} of {len(content)} bytes")
    if kind == "head":
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(min(64, len(data)))] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
    elif kind == "insert":
        data[at:at] = draw.randbytes(draw.randint(1, 40))
    elif kind == "delete":
        del data[at : at + draw.randint(1, 40)]
    elif kind == "repeat":
        data[at:at] = data[at : at + 200]
    elif kind == "zeros":
        data[at : at + 50] = bytes(min(50, len(data) - at))
    elif kind == "tail":
        return Mutated(content + draw.randbytes(50), "structure", "bytes after the end")
    else:
        return Mutated(flip(draw, content), "value", "bytes flipped")
    return Mutated(bytes(data), "value", f"{kind} at {at}")
