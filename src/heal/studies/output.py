"""Write the report of a study: tables as Markdown, CSV and JSON, figures as PNG and SVG, and the verdict."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heal.atomic_write import atomic_write
from heal.errors import FileError, RunError
from heal.escape import markdown_cell
from heal.json_values import json_values
from heal.studies.paper import CITATION
from heal.studies.setup import Setup
from heal.studies.study import Cell, Report, Row, Study, Table, Value
from heal.tracing import versions

PAPER = "paper"
OURS = "ours"
"""What a study says that is not of the paper."""


def write_report(folder: Path, study: Study, setup: Setup, model: Mapping[str, Any], report: Report) -> None:
    """Write all files of a report. Each is replaced atomically, and verdict.txt comes last."""
    try:
        for place, draw in enumerate(report.figures.items()):
            _write_figure(folder, "figure" if place == 0 else f"figure-{draw[0]}", draw[1])
        for place, table in enumerate(report.tables):
            name = "table" if place == 0 else f"table-{table.name}"
            atomic_write(folder / f"{name}.csv", csv_text(table))
        atomic_write(folder / "table.json", json_text(study, setup, model, report))
        atomic_write(folder / "table.md", markdown(study, setup, model, report))
        atomic_write(folder / "verdict.txt", "".join(f"{verdict.text}\n" for verdict in report.verdicts))
    except FileError as error:
        raise RunError(str(error)) from error


def _write_figure(folder: Path, name: str, draw: Any) -> None:
    from heal.extras import optional

    with optional():
        from heal.plots.figure import save

    figure = draw()
    save(figure, folder / f"{name}.png", dpi=150)
    save(figure, folder / f"{name}.svg")


def _source(study: Study) -> str:
    return "Not in the paper." if study.paper == OURS else f"Paper: {study.paper} of {CITATION}"


# ── Markdown ──────────────────────────────────────────────────────────────────────────────────────────────


def markdown(study: Study, setup: Setup, model: Mapping[str, Any], report: Report) -> str:
    """The whole report: verdicts, tables, notes, and what was measured on what."""
    lines = [f"# {study.name}: {study.summary}", "", _source(study), ""]
    lines += [f"- **{verdict.outcome}**: {verdict.text}" for verdict in report.verdicts]
    for table in report.tables:
        lines += ["", f"## {table.title or table.name}", "", markdown_table(table).rstrip("\n")]
    if report.notes:
        lines += ["", *(f"- {note}" for note in report.notes)]
    lines += [
        "",
        f"Model {model['name']} ({model['dtype']}, {model['device']}), {_images(setup)}, seed {setup.seed}.",
    ]
    lines += ["In brackets: 95 % intervals. Paper: its figure, and the direction that its claim implies.", ""]
    return "\n".join(lines)


def _images(setup: Setup) -> str:
    count = "all images" if setup.images is None else f"{setup.images} images each"
    where = "official data" if setup.data else f"the miniature world's {setup.split} split"
    return f"{count} of {where} ({', '.join(setup.distributions)})"


def markdown_table(table: Table) -> str:
    headings, rows = cells(table)
    lines = [f"| {' | '.join(map(markdown_cell, headings))} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(markdown_cell, row))} |" for row in rows)]) + "\n"


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text. What the paper prints is in the column after the measured one."""
    labels, values = _columns(table)
    compared = {heading for heading in values if any(_has_paper(row.values.get(heading)) for row in table.rows)}
    headings = list(labels)
    for heading in values:
        headings += [heading, PAPER] if heading in compared else [heading]
    return headings, [_cells(row, labels, values, compared) for row in table.rows]


def _cells(row: Row, labels: Sequence[str], values: Sequence[str], compared: set[str]) -> list[str]:
    found = [row.labels.get(name, "") for name in labels]
    for heading in values:
        cell = row.values.get(heading)
        found.append(shown(cell))
        if heading in compared:
            found.append(_paper(cell) if isinstance(cell, Value) else "")
    return found


def _columns(table: Table) -> tuple[list[str], list[str]]:
    labels = dict.fromkeys(name for row in table.rows for name in row.labels)
    return list(labels), list(dict.fromkeys(name for row in table.rows for name in row.values))


def _has_paper(cell: Cell) -> bool:
    return isinstance(cell, Value) and (cell.paper is not None or bool(cell.expected))


def shown(cell: Cell) -> str:
    """A cell as text: `0.10 (0.08 to 0.12)`."""
    if cell is None:
        return ""
    return str(cell)


def _paper(value: Value) -> str:
    number = f"{value.paper:.{value.digits}f}" if isinstance(value.paper, float) else value.paper
    return " ".join(str(part) for part in (number, value.expected) if part not in (None, ""))


# ── CSV and JSON ──────────────────────────────────────────────────────────────────────────────────────────


def csv_text(table: Table) -> str:
    """One line per row; a value with its limits, number of samples and the paper's figure has five columns."""
    found = [{n: "" if v is None else v for n, v in json_values(row).items()} for row in flat_rows(table)]
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in found for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def flat_rows(table: Table) -> list[dict[str, Any]]:
    """The rows as one mapping each, a value as its number, its limits and what the paper prints."""
    return [
        {
            **row.labels,
            **{name: part for heading, cell in row.values.items() for name, part in _flat(heading, cell).items()},
        }
        for row in table.rows
    ]


def _flat(heading: str, cell: Cell) -> dict[str, Any]:
    if not isinstance(cell, Value):
        return {heading: cell}
    own: dict[str, Any] = {heading: cell.value, f"{heading} low": cell.low, f"{heading} high": cell.high}
    if cell.n is not None:
        own[f"{heading} n"] = cell.n
    if _has_paper(cell):
        own |= {f"{heading} paper": cell.paper, f"{heading} expected": cell.expected}
    return own


def json_text(study: Study, setup: Setup, model: Mapping[str, Any], report: Report) -> str:
    """Everything with full precision."""
    tables = [
        {
            "name": table.name,
            "title": table.title,
            "rows": [
                {"labels": row.labels, "values": {k: _json(v) for k, v in row.values.items()}} for row in table.rows
            ],
        }
        for table in report.tables
    ]
    value = {
        "study": study.name,
        "paper": study.paper,
        "verdicts": [asdict(verdict) for verdict in report.verdicts],
        "tables": tables,
        "notes": list(report.notes),
        "model": dict(model),
        "setup": setup.to_dict(),
        "versions": versions(),
    }
    return json.dumps(json_values(value), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _json(cell: Cell) -> Any:
    return asdict(cell) if isinstance(cell, Value) else cell
