"""Printing: sanitised text, and tables for people or programs."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from heal.errors import ConfigError
from heal.escape import json_text, markdown_cell, visible
from heal.json_values import json_values

MIN_WIDTH = 40
BORDER = 3
"""Width of a column besides its text."""


class Format(StrEnum):
    table = "table"
    md = "md"
    csv = "csv"
    json = "json"


FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Output format: table (default), md (Markdown), csv or json.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def chosen_format(given: Format | None, as_json: bool) -> Format:
    """Resolve `--format`; `--json` is short for `--format json`."""
    if as_json and given not in (None, Format.json):
        raise ConfigError(f"--json and --format {given} contradict each other: give one of them")
    return Format.json if as_json else given or Format.table


@dataclass(frozen=True)
class Table:
    """A table of strings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    leading: int = 1
    """Number of leading columns that are repeated if the table is too wide and has to be split."""


def say(text: object = "") -> None:
    """Print a line to standard output."""
    print(visible(text))


def note(text: object) -> None:
    """Print a message to standard error, so that standard output only has results."""
    print(visible(text), file=sys.stderr, flush=True)


def emit(value: dict[str, Any]) -> None:
    """Print one JSON object, exactly, in any encoding of standard output."""
    content = json_values(value)
    text = json_text(json.dumps(content, ensure_ascii=False))
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(content)
    print(text)


def emit_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as CSV with a header; unknown values are empty. In a terminal, control characters are escaped."""
    found = [{key: _cell(value) for key, value in row.items()} for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in found for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    print(visible(text.getvalue()) if sys.stdout.isatty() else text.getvalue(), end="")


def show(table: Table, form: Format = Format.table) -> None:
    """Print a table for a terminal or as Markdown."""
    if table.title:
        say(f"**{markdown_cell(table.title)}**\n" if form is Format.md else table.title)
    print(markdown(table) if form is Format.md else draw(table, width()))


def markdown(table: Table) -> str:
    rows = [table.headings, ["---"] * len(table.headings), *table.rows]
    cells = ([cell if index == 1 else markdown_cell(cell) for cell in row] for index, row in enumerate(rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def width() -> int:
    """Width of the terminal; without one, COLUMNS or 80."""
    return max(MIN_WIDTH, shutil.get_terminal_size((80, 24)).columns)


def draw(table: Table, columns: int) -> str:
    """Draw a table with borders. Wide tables are split or wrapped, never truncated."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, width=columns, color_system=None, legacy_windows=False)
    widths = _widths(table, columns)
    for block in _blocks(widths, table.leading, columns):
        grid = RichTable()
        for index in block:
            side = "left" if index < table.leading else "right"
            heading = Text(visible(table.headings[index]))
            grid.add_column(heading, justify=side, overflow="fold", min_width=widths[index], max_width=widths[index])  # type: ignore[arg-type]
        for row in table.rows:
            grid.add_row(*(Text(_wrapped(visible(row[index]), widths[index])) for index in block))
        console.print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _wrapped(text: str, columns: int) -> str:
    """Wrap text after separators."""
    lines = [""]
    for piece in re.split(r"(?<=[,:+/ ])", text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > columns:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _widths(table: Table, columns: int) -> list[int]:
    """Column widths: the longest cell of each column. Leading columns are wrapped if they are too wide."""
    from rich.cells import cell_len

    most = max(1, (columns - 1) // 3 - BORDER) if table.leading == 1 else max(1, (columns - 1) // 4 - BORDER)
    found = []
    for index, heading in enumerate(table.headings):
        words = visible(heading).split() or [""]
        longest = max([*map(cell_len, words), *(cell_len(visible(row[index])) for row in table.rows)])
        found.append(min(longest, most if index < table.leading else columns - 1 - BORDER))
    return found


def _blocks(widths: Sequence[int], leading: int, columns: int) -> list[list[int]]:
    """Split columns into blocks that fit the width, each starting with the leading columns."""
    head = list(range(leading))
    available = columns - 1 - sum(widths[i] + BORDER for i in head)
    blocks: list[list[int]] = []
    left = 0
    for index in range(leading, len(widths)):
        if not blocks or widths[index] + BORDER > left:
            blocks.append([*head])
            left = available
        blocks[-1].append(index)
        left -= widths[index] + BORDER
    return blocks or [head]


def _cell(value: Any) -> Any:
    value = json_values(value)
    return (
        json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else "" if value is None else value
    )
