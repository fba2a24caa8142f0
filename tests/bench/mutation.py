"""Mutations of valid files, deterministic for a given seed."""

import json
import random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 10**30, "", " ", "\0", "²", "x" * 5000, "../../etc/passwd", "/etc/passwd", "yes", "12",
    [], [[]], {}, {"a": 1}, ["yes"], "\u2028", "é" * 200,
)  # fmt: skip
RAW: tuple[bytes, ...] = (
    b"[" * 50_000, b"9" * 5000, b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b"\xff", b"\xef\xbb\xbf", b"\0", b"{",
    b'{"a": 1, "a": 2}', b"}", b"\n", b"\r\n", b"\t", b",", b'"', b"null",
)  # fmt: skip


def mutated(content: str, rng: random.Random) -> bytes:
    """Apply one or two changes, to values if the text is JSON, otherwise to bytes."""
    data = content.encode()
    for _ in range(rng.randint(1, 2)):
        changed = _values(data, rng) if rng.random() < 0.6 else None
        data = changed if changed is not None else _bytes(data, rng)
    return data


def _values(data: bytes, rng: random.Random) -> bytes | None:
    """Replace, drop, repeat or swap a value in a JSON file or in one of its lines."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    for whole in (True, False):
        try:
            value = json.loads(data if whole else lines[at])
        except (ValueError, RecursionError):
            continue
        box = {"": value}
        _change(box, rng)
        text = json.dumps(box.get("")).encode()
        return text if whole else b"\n".join([*lines[:at], text, *lines[at + 1 :]])
    return None


def _change(node: Any, rng: random.Random) -> None:
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not keys:
        return
    key = rng.choice(keys)
    if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
        return _change(node[key], rng)
    action = rng.choice(("odd", "odd", "odd", "drop", "swap", "repeat"))
    if action == "drop":
        del node[key]
    elif action == "swap":
        node[key] = node[rng.choice(keys)]
    elif action == "repeat" and isinstance(node, list):
        node.insert(rng.randrange(len(node)), node[key])
    else:
        node[key] = rng.choice(ODD)
    return None


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    lines = data.split(b"\n")
    row = rng.randrange(len(lines))
    return rng.choice(
        (
            data[:at],
            data[:at] + rng.choice(RAW) + data[at:],
            data[:at] + rng.choice(RAW) + data[at + 1 :],
            data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
            rng.choice(RAW),
            b"",
            b"\n".join([*lines[:row], lines[row], *lines[row:]]),
            b"\n".join(lines[:row] + lines[row + 1 :]),
        )
    )
