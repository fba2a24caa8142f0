"""Output: tables fit the terminal, all formats have the same content, and control characters are escaped."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from heal.bench.score.bootstrap import Interval
from heal.bench.score.summary import Row, Summary
from heal.cli.output import Format, Table, chosen_format, draw, emit, emit_csv, markdown, note, say, show
from heal.cli.summary import print_summary
from heal.errors import ConfigError
from heal.studies.comparison import ComparisonRow
from heal.studies.comparison import markdown as comparison_markdown

EVIL = "[red]x[/] \x1b[2J | <b>y</b>\nz"
SPLITS = ("random", "popular", "adversarial")
FIGURES = ("accuracy", "precision", "recall", "f1", "yes_ratio", "unparsable")


def row(method: str, **changes: Any) -> Row:
    names = [*FIGURES, *(f"{split}/{figure}" for split in SPLITS for figure in FIGURES)]
    values = {name: Interval(100.0, 99.25 - 0.01 * i, 100.0) for i, name in enumerate(names)}
    shifts = {name: Interval(-10.5, -12.25, -10.0) for name in names}
    given: dict[str, Any] = {
        "task": "mini-pope:count=500,distribution=counter,split=validation",
        "method": method,
        "headline": "f1",
        "higher_is_better": True,
        "answered": 123456,
        "failed": 0,
        "missing": 0,
        "figures": values,
        "differences": None if method == "plain" else shifts,
        "changed": None if method == "plain" else 123456,
        "fired": None if method == "plain" else 123456,
        "reason": None,
        "yes_ratio": 50.0,
        "mean_tokens": 2.0,
        "seconds": 1.0,
        "seconds_per_token": 0.1,
        "time_ratio": 1.5,
        "memory": 2**34,
    }
    return Row(**given | changes)


def summary(*methods: str) -> Summary:
    return Summary(Path("runs/it"), tuple(row(method) for method in methods))


LONG = "heal:alpha=0.6,interval=5,masking=zero,factor_limit=none,layers=8-23+beam:beams=3"


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_tables_fit_without_truncation(columns: int, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_summary(summary("plain", LONG))
    shown = capsys.readouterr().out
    assert all(len(line) <= columns for line in shown.splitlines() if line[0] in "┏┃│└┡")
    assert "…" not in shown
    assert "100.00 [99.22, 100.00]" in shown
    assert "-10.50 [-12.25, -10.00] *" in shown
    assert "123456 of 123456" in shown
    for split, low in zip(SPLITS, ("99.16", "99.10", "99.04"), strict=True):
        (line,) = (x for x in shown.splitlines() if x.startswith(f"│ {split}") and "plain" in x and f"[{low}" in x)
        assert f"100.00 [{low}, 100.00]" in line


def test_every_figure_is_in_the_csv(capsys) -> None:
    print_summary(summary("plain", EVIL), Format.csv)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 * len(FIGURES) * (1 + len(SPLITS))
    assert {r["method"] for r in rows} == {"plain", EVIL}
    (found,) = (r for r in rows if r["figure"] == "popular/f1" and r["method"] == EVIL)
    assert float(found["value"]) == 100.0
    assert float(found["low"]) == pytest.approx(99.10)
    assert float(found["difference_high"]) == -10.0
    assert next(r for r in rows if r["method"] == "plain")["difference"] == ""


def test_names_are_escaped(capsys) -> None:
    print_summary(summary("plain", EVIL))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[red]x[/]" in shown.replace("\n", "")
    print_summary(summary("plain", EVIL), Format.md)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "<b>" not in text
    (line,) = (x for x in text.splitlines() if x.startswith("| [red]x") and "-10.50" in x)
    assert line.startswith("| [red]x[/] \\\\x1b[2J \\| &lt;b&gt;y&lt;/b&gt; z | 123456 | 100.00")
    print_summary(summary("plain", EVIL), Format.json)
    assert json.loads(capsys.readouterr().out)["rows"][1]["method"] == EVIL


def test_table_md_of_compare_is_escaped() -> None:
    line = ComparisonRow(EVIL, {"POPE F1": Interval(1.0, 0.0, 2.0)}, {}, math.nan, 0, False)
    *_, last = comparison_markdown([line]).splitlines()
    assert last == "| [red]x[/] \\\\x1b[2J \\| &lt;b&gt;y&lt;/b&gt; z | 1.0 | – | 0 MiB | **no** |"


def test_lines_are_escaped(capsys) -> None:
    say("\x1b[2J[bold]answer\nnext")
    note("\x1b]0;title\x07")
    out, err = capsys.readouterr()
    assert out == "\\x1b[2J[bold]answer\nnext\n"
    assert err == "\\x1b]0;title\\x07\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252"])
def test_json_is_exact_in_every_encoding(encoding: str, monkeypatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding, errors="backslashreplace", write_through=True))
    value = {"text": "\x1b[31m α 🐈 \x9b é"}
    emit(value | {"file": "\udcff"})
    # a lone surrogate is not valid text: it is written as its escape sequence
    assert json.loads(raw.getvalue().decode(encoding)) == value | {"file": "\\udcff"}
    assert b"\x1b" not in raw.getvalue()


def test_csv_is_escaped_only_in_a_terminal(monkeypatch, capsys) -> None:
    emit_csv([{"a": "\x1b[2J", "b": None, "c": [1, 2]}, {"a": math.nan, "d": 1.5}])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows == [{"a": "\x1b[2J", "b": "", "c": "[1, 2]", "d": ""}, {"a": "", "b": "", "c": "", "d": "1.5"}]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    emit_csv([{"a": "\x1b[2J"}])
    assert capsys.readouterr().out == "a\n\\x1b[2J\n"


def test_wide_tables_are_split() -> None:
    table = Table(["name", *(f"figure {i}" for i in range(9))], [["z" * 100, *(["1234567890"] * 9)]])
    for columns in (40, 60, 80):
        text = draw(table, columns)
        assert max(map(len, text.splitlines())) <= columns
        assert text.count("1234567890") == 9
        assert text.count("z") % 100 == 0
    assert markdown(table).count("\n") == 3


def test_conflicting_formats_are_refused() -> None:
    assert chosen_format(None, False) is Format.table
    assert chosen_format(None, True) is chosen_format(Format.json, True) is Format.json
    assert chosen_format(Format.csv, False) is Format.csv
    with pytest.raises(ConfigError, match="--json and --format csv contradict each other"):
        chosen_format(Format.csv, True)


def test_titles(capsys) -> None:
    show(Table(["a", "b"], [["1", "2"]], "*it*"), Format.md)
    assert capsys.readouterr().out.startswith("**\\*it\\***\n\n| a | b |\n")
