"""Summary tables of a run: for a terminal, as Markdown, or as CSV with every figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from heal.cli.output import Format, Table, emit, emit_csv, say, show
from heal.escape import markdown_cell

if TYPE_CHECKING:
    from heal.bench.score.bootstrap import Interval
    from heal.bench.score.summary import Row, Summary

NONE = "–"
AT_EQUAL_RECALL, AT_HIGHEST_RECALL = "chair_i_at_equal_recall", "chair_i_at_highest_recall"
"""Figures that exist as differences only."""


def print_summary(summary: Summary, output: Format = Format.table) -> None:
    """Print figures and cost of every method for each task, followed by warnings."""
    if output is Format.json:
        return emit({"run": str(summary.folder), **summary.scores()})
    if output is Format.csv:
        return emit_csv(csv_rows(summary))
    for task, group in groupby(summary.rows, lambda row: row.task):
        rows = list(group)
        heading = f"{task}: {rows[0].answered} answers, 95 % intervals; differences to {rows[0].method}, paired"
        say(f"{markdown_cell(heading)}\n" if output is Format.md else heading)
        for table in (figures_table(rows), parts_table(rows), equal_recall_table(rows), cost_table(rows)):
            if len(table.headings) > table.leading:
                show(table, output)
        for line in remarks(rows):
            say(f"- {markdown_cell(line)}" if output is Format.md else line)
    say(f"run: {markdown_cell(summary.folder) if output is Format.md else summary.folder}")


def figures_table(rows: list[Row]) -> Table:
    first = rows[0]
    others = [name for name in first.figures if "/" not in name and name not in (first.headline, "yes_ratio")]
    arrow = "↑" if first.higher_is_better else "↓"
    captions = any(row.equal_recall for row in rows)
    headings = ["method", "n", f"{first.headline} {arrow}", "difference", *["at equal recall"] * captions, *others]
    cells = []
    for row in rows:
        difference = row.differences.get(row.headline) if row.differences else None
        cells.append(
            [
                row.method,
                str(row.answered) if row.answered == row.asked else f"{row.answered} of {row.asked}",
                interval(row.figures[row.headline]),
                _difference(difference),
                *[_difference(row.equal_recall.mean if row.equal_recall else None)] * captions,
                *(number(row.figures[name].value) for name in others),
            ]
        )
    return Table([heading.replace("_", " ") for heading in headings], cells)


def _difference(value: Interval | None) -> str:
    return NONE if value is None else interval(value, sign="+") + " *" * value.excludes_zero


def parts_table(rows: list[Row]) -> Table:
    """Figures named `part/figure`: the splits of POPE, the subtasks of MME. No columns if there are none."""
    names = [name.split("/", 1) for name in rows[0].figures if "/" in name]
    parts, figures = (list(dict.fromkeys(name[at] for name in names)) for at in (0, 1))
    main = next((figure for figure in (rows[0].headline, "score") if figure in figures), None)
    figures.sort(key=lambda figure: figure != main)
    cells = []
    for part in parts:
        for row in rows:
            found = {
                figure: row.figures[f"{part}/{figure}"] for figure in figures if f"{part}/{figure}" in row.figures
            }
            shown = {f: interval(v) if f == main else number(v.value) for f, v in found.items()}
            cells.append([part, row.method, *(shown.get(figure, NONE) for figure in figures)])
    return Table(["part", "method", *(figure.replace("_", " ") for figure in figures)], cells, leading=2)


def cost_table(rows: list[Row]) -> Table:
    headings = ("method", "yes", "tokens", "ms/token", "ratio", "peak memory", "fired", "changed answers")
    cells = [
        (
            row.method,
            NONE if row.yes_ratio != row.yes_ratio else f"{row.yes_ratio:.0f} %",
            number(row.mean_tokens),
            number(1000 * row.seconds_per_token, 2),
            number(row.time_ratio, 2),
            f"{row.memory / 2**20:,.0f} MiB" if row.answered else NONE,
            NONE if row.fired is None else f"{row.fired} of {row.answered}",
            NONE if row.changed is None else "none" if row.unchanged else f"{row.changed} of {row.answered}",
        )
        for row in rows
    ]
    return Table(headings, cells)


def csv_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """One row per task, method and figure."""
    for row in summary.rows:
        facts = asdict(row) | {"unchanged": row.unchanged}
        shared = {k: v for k, v in facts.items() if k not in ("figures", "differences", "equal_recall")}
        place = {key: shared.pop(key) for key in ("task", "method")}
        lines: dict[str, tuple[Interval | None, Interval | None]]
        lines = {name: (value, (row.differences or {}).get(name)) for name, value in row.figures.items()}
        if found := row.equal_recall:
            lines |= {AT_EQUAL_RECALL: (None, found.mean), AT_HIGHEST_RECALL: (None, found.highest)}
        for name, (value, difference) in lines.items():
            yield place | {"figure": name} | bounds(value) | bounds(difference, "difference") | shared


def bounds(interval: Interval | None, name: str = "") -> dict[str, float | None]:
    """The columns of an interval in a CSV file; empty for None."""
    keys = (name, f"{name}_low", f"{name}_high") if name else ("value", "low", "high")
    return dict(zip(keys, (interval.value, interval.low, interval.high) if interval else (None,) * 3, strict=True))


def equal_recall_table(rows: list[Row]) -> Table:
    """CHAIR_i of each method and of the first where their captions, cut after some sentences, have equal recall."""
    cells = []
    for row in rows:
        if found := row.equal_recall:
            at = f"{number(found.lowest_recall)} to {number(found.highest_recall)}"
            pair = f"{number(found.second, 2)} against {number(found.first, 2)}"
            cells.append([row.method, at, _difference(found.mean), pair, _difference(found.highest)])
    headings = ["method", "recall", "chair i at equal recall, mean", "at the highest recall", "difference"]
    return Table(headings, cells) if cells else Table(["method"], [])


def remarks(rows: list[Row]) -> list[str]:
    """Remarks on parsing, and warnings about methods without effect and samples without an answer."""
    found = []
    shared = len({row.note for row in rows}) == 1
    if shared and rows[0].note:
        found.append(f"{rows[0].task}: {rows[0].note}")
    for row in rows:
        if row.note and not shared:
            found.append(f"! {row.method}: {row.note}")
        if row.unchanged:
            why = f" ({row.reason})" if row.fired == 0 and row.reason else ""
            did = "was inactive" if row.fired == 0 else "was active"
            found.append(f"! {row.method} CHANGED NO ANSWER of {rows[0].method}: it {did}{why}")
        elif row.fired == 0:
            found.append(f"! {row.method} fired in no answer: {row.reason}")
        if row.failed:
            found.append(
                f"! {row.method}: {row.failed} samples failed; records.jsonl says why. The first: {row.first_error}"
            )
        if row.left_out:
            found.append(f"! {row.method}: {row.left_out} samples were skipped because their images are missing")
        if row.missing:
            found.append(f"! {row.method}: {row.missing} samples have no answer yet; resume the run")
    return found


def interval(value: Interval, sign: str = "") -> str:
    if value.value != value.value:
        return NONE
    return f"{value.value:{sign}.2f} [{value.low:{sign}.2f}, {value.high:{sign}.2f}]"


def number(value: float, digits: int = 1) -> str:
    return NONE if value != value else f"{value:.{digits}f}"
