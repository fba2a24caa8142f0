"""Strict JSON: ambiguous input is rejected with a short message."""

import os
import re
from pathlib import Path

import pytest

import heal
from heal import strict_json
from heal.errors import DataError, RunError
from heal.json_values import json_values

SOURCE = Path(heal.__file__).parent


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice"),
        ('[{"x": {"a": 1, "a": 1}}]', "the key 'a' occurs twice"),
        ("[NaN]", "NaN is not a number that JSON has"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ("1e999", "1e999 is too large"),
        ("9" * 5000, "a number of 5000 digits"),
        ("[" * 50_000, "nested more than 64 levels"),
        ("[" * 80 + "]" * 80, "nested more than 64 levels"),
        ('{"a":' * 80 + "1" + "}" * 80, "nested more than 64 levels"),
        ('["\\ud83d"]', "half a surrogate pair"),
        ('{"\\uDC80": 1}', "half a surrogate pair"),
    ],
)
def test_ambiguous_json_is_rejected(text: str, message: str) -> None:
    with pytest.raises(strict_json.Refused, match=re.escape(message)):
        strict_json.parse(text)


def test_invalid_json_has_its_own_error() -> None:
    for text in ("", "{", '{"a": 1', "[1,]", "\0\0"):
        with pytest.raises(strict_json.Broken):
            strict_json.parse(text)


def test_good_json_is_read() -> None:
    text = '{"a": [1, -2.5, 1e300, true, null], "\\ud83d\\udc08": "\\\\ud800", "b": {"a": {"a": 1}}}'
    assert strict_json.parse(text) == {"a": [1, -2.5, 1e300, True, None], "🐈": "\\ud800", "b": {"a": {"a": 1}}}
    assert strict_json.parse("[" * 60 + "]" * 60)
    assert strict_json.parse('["\\ud83d"]', surrogates=True) == ["\ud83d"]


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    os.mkfifo(tmp_path / "pipe")
    for place, message in (
        (path, "file.json is missing; it comes from afar"),
        (tmp_path, "is a folder, not a file"),
        (tmp_path / "pipe", "is a pipe or a device"),
        (tmp_path / ("x" * 5000), "cannot be read: File name too long"),
        (tmp_path / "a\0b", "cannot be the name of a file"),
    ):
        with pytest.raises(RunError, match=message) as raised:
            strict_json.read(place, RunError, "afar")
        assert len(str(raised.value)) < 400
    for content, message in (
        (b"", "file.json is empty"),
        (b"\xef\xbb\xbf \n", "file.json is empty"),
        (b'["\xff"]', "is not a text file in UTF-8: byte 2"),
        (b"[1", "file.json is not JSON: "),
        (b'{"a": 1, "a": 1}', "file.json cannot be used: the key"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            strict_json.read(path)
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert strict_json.read(path) == {"a": 1}
    monkeypatch.setattr(strict_json, "MAX_BYTES", 5)
    with pytest.raises(DataError, match="has 11 bytes; files of up to 5 can be read"):
        strict_json.read(path)


def test_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert list(strict_json.lines('{"a": "\u2028"}\n\n[2]\n', path)) == [(1, {"a": "\u2028"}), (3, [2])]
    with pytest.raises(DataError, match=r"x.jsonl, line 2 cannot be used: the key 'a' occurs twice"):
        list(strict_json.lines('{}\n{"a": 1, "a": 2}\n', path))
    with pytest.raises(DataError, match=r"x.jsonl, line 1 is not JSON: .*[^f]$"):
        list(strict_json.lines("{\n{}\n", path))
    with pytest.raises(DataError, match=r"line 2 is not JSON: .*probably cut off"):
        list(strict_json.lines('{}\n{"a', path))


def test_lone_surrogates_can_be_written() -> None:
    value = json_values({"a\udc80": ["\ud83d 猫", Path("x\udcff"), "plain"]})
    assert value == {"a\\udc80": ["\\ud83d 猫", "x\\udcff", "plain"]}


def test_nothing_else_reads_json() -> None:
    """Exceptions: a trace and a description of features copy a value, and a tokenizer describes itself."""
    reading = re.compile(r"\bjson\.loads?\(|\.json\(\)")
    found = {
        str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if reading.search(p.read_text(encoding="utf-8"))
    }
    assert found == {"strict_json.py", "trace.py", "bench/run/environment.py", "detect/collecting.py"}
