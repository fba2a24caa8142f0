"""The summary of a run as tables for a person."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from heal.bench.bootstrap import Interval
    from heal.bench.summary import Row, Summary

WIDTH = 140  # of files and pipes, which have none of their own
NONE = "–"


def print_summary(summary: Summary) -> None:
    """Figures and cost of every method, task by task, then what to beware of."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for task, group in groupby(summary.rows, lambda row: row.task):
        rows = list(group)
        print(f"{task}: {rows[0].answered} answers, 95 % intervals; differences to {rows[0].method}, paired")
        console.print(figures_table(rows))
        console.print(cost_table(rows))
        for line in remarks(rows):
            print(line)
    print(f"run: {summary.folder}")


def figures_table(rows: list[Row]) -> Table:
    first = rows[0]
    others = [name for name in first.figures if "/" not in name and name not in (first.headline, "yes_ratio")]
    table = Table()
    table.add_column("method")
    arrow = "↑" if first.higher_is_better else "↓"
    for name in ("n", f"{first.headline} {arrow}", "difference", *others):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        difference = row.differences.get(row.headline) if row.differences else None
        table.add_row(
            row.method,
            str(row.answered) if row.answered == row.asked else f"{row.answered} of {row.asked}",
            interval(row.figures[row.headline]),
            NONE if difference is None else interval(difference, sign="+") + " *" * difference.excludes_zero,
            *(number(row.figures[name].value) for name in others),
        )
    return table


def cost_table(rows: list[Row]) -> Table:
    table = Table()
    table.add_column("method")
    for name in ("yes", "tokens", "ms a token", "ratio", "peak memory", "fired", "other answers"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.method,
            NONE if row.yes_ratio != row.yes_ratio else f"{row.yes_ratio:.0f} %",
            number(row.mean_tokens),
            number(1000 * row.seconds_per_token, 2),
            number(row.time_ratio, 2),
            f"{row.memory / 2**20:,.0f} MiB" if row.answered else NONE,
            NONE if row.fired is None else f"{row.fired} of {row.answered}",
            NONE if row.changed is None else "none" if row.unchanged else f"{row.changed} of {row.answered}",
        )
    return table


def remarks(rows: list[Row]) -> list[str]:
    """How answers were read, a method without effect, samples without an answer."""
    found = []
    shared = len({row.note for row in rows}) == 1
    if shared and rows[0].note:
        found.append(f"{rows[0].task}: {rows[0].note}")
    for row in rows:
        if row.note and not shared:
            found.append(f"! {row.method}: {row.note}")
        if row.unchanged:
            why = f" ({row.reason})" if row.fired == 0 and row.reason else ""
            did = "did nothing" if row.fired == 0 else "took part"
            found.append(f"! {row.method} CHANGED NO ANSWER of {rows[0].method}: it {did}{why}")
        elif row.fired == 0:
            found.append(f"! {row.method} fired in no answer: {row.reason}")
        if row.failed:
            found.append(
                f"! {row.method}: {row.failed} samples failed; records.jsonl says why. The first: {row.first_error}"
            )
        if row.left_out:
            found.append(f"! {row.method}: {row.left_out} samples were left out, because their images are missing")
        if row.missing:
            found.append(f"! {row.method}: {row.missing} samples have no answer yet; resume the run")
    return found


def interval(value: Interval, sign: str = "") -> str:
    if value.value != value.value:
        return NONE
    return f"{value.value:{sign}.2f} [{value.low:{sign}.2f}, {value.high:{sign}.2f}]"


def number(value: float, digits: int = 1) -> str:
    return NONE if value != value else f"{value:.{digits}f}"
