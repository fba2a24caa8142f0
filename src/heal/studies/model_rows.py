"""Tables of models with and without HEAL: the model of this run, those of the paper, and several runs in one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heal import strict_json
from heal.bench.run.names import method_name
from heal.errors import RunError
from heal.methods import HEAL, Method
from heal.studies.answered import CHAIR_I, EQUAL_RECALL, Answered
from heal.studies.comparison import EMBEDDED_HEAL
from heal.studies.paper import printed
from heal.studies.paper_table import (
    ALPHA_NOTE,
    PLAIN,
    Column,
    change,
    direction,
    for_benchmark,
    papers_name,
)
from heal.studies.parts import Evaluation
from heal.studies.setup import Setup
from heal.studies.study import Cell, Draw, Found, Outcome, Row, Table, Value, Verdict
from heal.studies.verdicts import compared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAL_ROW = "heal"
PAPER = "paper"
"""The distribution of rows that only the paper has."""
MINUS = " − plain"


@dataclass(frozen=True)
class ModelTable:
    """A table of the paper with one pair of rows per model."""

    name: str
    """In paper.json, and of the study."""
    columns: Sequence[Column]

    @property
    def benchmarks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column.benchmark for column in self.columns))

    def there(self, setup: Setup) -> list[Column]:
        """The columns whose data is there."""
        present = setup.present(*self.benchmarks)
        return [column for column in self.columns if column.benchmark in present]

    def parts(self, setup: Setup) -> Iterator[Evaluation]:
        for benchmark in setup.present(*self.benchmarks):
            methods = for_benchmark(forms(setup), benchmark, setup)
            yield Evaluation(benchmark, setup.tasks(benchmark), methods, setup.settings)

    def printed(self, model: str) -> Mapping[str, Mapping[str, float]]:
        """The paper's figures of a model: plain and heal by figure. Empty if it does not use the model."""
        found: Mapping[str, Mapping[str, float]] = printed(self.name).get(model, {})
        return found

    def of(self, model: str, form: str) -> dict[str, float]:
        return {figure: pair[form] for figure, pair in self.printed(model).items()}

    def changes(self, column: Column) -> list[float]:
        """HEAL − plain of all models in the paper."""
        pairs = [printed(self.name)[model][column.paper] for model in printed(self.name)]
        found = (change(p["plain"], p["heal"]) for p in pairs)
        return [round(column.scale * one, 6) for one in found if one is not None]


def forms(setup: Setup) -> dict[str, Method | None]:
    """The plain model, and what the user gave, or HEAL; for the embedded model also the form chosen for it."""
    if setup.methods:
        return {PLAIN: None, **{name: method for name, method in setup.methods.items() if method is not None}}
    chosen = {"heal one-sided": EMBEDDED_HEAL} if setup.model == "embedded" else {}
    return {PLAIN: None, HEAL_ROW: HEAL(), **chosen}


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Compared:
    """The answers of the model of this run on one distribution."""

    table: ModelTable
    found: Found
    distribution: str
    answered: Mapping[str, Answered]
    """By benchmark."""

    @classmethod
    def of(cls, table: ModelTable, found: Found, distribution: str) -> Compared:
        there = found.setup.present(*table.benchmarks)
        return cls(table, found, distribution, {b: Answered.of(found, b, b, distribution) for b in there})

    @property
    def model(self) -> str:
        return str(self.found.model["name"])

    @property
    def columns(self) -> list[Column]:
        return self.table.there(self.found.setup)

    def rows(self) -> list[Row]:
        found = [self._row(name, PLAIN if name == PLAIN else HEAL_ROW) for name in forms(self.found.setup)]
        return found + [self._difference(name) for name in forms(self.found.setup) if name != PLAIN]

    def _labels(self, method: str) -> dict[str, str]:
        return {"distribution": self.distribution, "model": self.model, "method": method}

    def _row(self, name: str, form: str) -> Row:
        paper = self.table.of(papers_name(self.model), form) if form == name else {}
        values: dict[str, Cell] = {}
        for column in self.columns:
            row = self.answered[column.benchmark].row(name)
            values[column.heading] = column.value(row, column.printed(paper))
            if column.heading == CHAIR_I:
                values[EQUAL_RECALL] = None if row.equal_recall is None else Value.of(row.equal_recall.mean)
        for benchmark, answered in self.answered.items():
            row = answered.row(name)
            if row.changed is not None:
                values[f"{benchmark}: changed answers"] = f"{row.changed} of {row.answered}"
        return Row(self._labels(name), values)

    def _difference(self, name: str) -> Row:
        values: dict[str, Cell] = {}
        for column in self.columns:
            row, own = self.answered[column.benchmark].row(name), self.paper_change(name, column)
            values[column.heading] = column.difference(row, own, self.expected(column))
        return Row(self._labels(f"{name}{MINUS}"), values)

    def paper_change(self, name: str, column: Column) -> float | None:
        """HEAL − plain of this model in the paper."""
        pair = self.table.printed(papers_name(self.model)).get(column.paper)
        if pair is None or name != HEAL_ROW:
            return None
        return round(column.scale * (pair["heal"] - pair["plain"]), 6)

    def expected(self, column: Column) -> str:
        """The direction that the paper prints for all of its models."""
        found = {direction(one) for one in self.table.changes(column)}
        return found.pop() if len(found) == 1 else ""

    # ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────

    def verdicts(self) -> list[Verdict]:
        names = [name for name in forms(self.found.setup) if name != PLAIN]
        return [verdict for name in names for column in self.columns for verdict in self._verdicts(name, column)]

    def _verdicts(self, name: str, column: Column) -> Iterator[Verdict]:
        answered = self.answered[column.benchmark]
        row, expected = answered.row(name), self.expected(column)
        word = {"↑": "higher", "↓": "lower"}.get(expected, "other")
        heading = column.heading.removesuffix(" ↓")
        claim = f"{name}: {word} {heading} than plain ({self.distribution})"
        if answered.task.judged and math.isnan(answered.figure(name, column.figure).value):
            why = f"no judge has rated the answers (heal score {answered.evaluated.summary.folder} --judge NAME)"
            yield Verdict(claim, Outcome.TOO_FEW, f"{claim}: {why}, so there is no verdict")
            return
        found, paper = (row.differences or {})[column.figure], self._paper_text(name, column)
        shown: dict[str, Any] = {"expected": expected, "paper": paper, "digits": column.digits}
        yield compared(claim, found, answered, (PLAIN, name), **shown)
        if column.heading == CHAIR_I and row.equal_recall is not None:
            claim = f"{name}: lower CHAIR_i at equal recall than plain ({self.distribution})"
            yield compared(claim, row.equal_recall.mean, answered, (PLAIN, name), expected="↓")

    def _paper_text(self, name: str, column: Column) -> float | str:
        """The paper's difference for this model, or the range over its models."""
        own = self.paper_change(name, column)
        every = self.table.changes(column)
        shown = f"{min(every):+.{column.digits}f} to {max(every):+.{column.digits}f} over its models"
        return shown if own is None else own


def printed_rows(table: ModelTable, columns: Sequence[Column], without: str) -> list[Row]:
    """The paper's models, except this one."""
    found = []
    for model in printed(table.name):
        if model == without:
            continue
        pair = {form: table.of(model, form) for form in (PLAIN, HEAL_ROW)}
        for form, figures in pair.items():
            values = {c.heading: c.only_printed(c.printed(figures)) for c in columns}
            found.append(Row(labels(model, form), values))
    return found


def labels(model: str, method: str) -> dict[str, str]:
    return {"distribution": PAPER, "model": model, "method": method}


# ── notes and figure ──────────────────────────────────────────────────────────────────────────────────────


def notes(table: ModelTable, found: Found, every: Sequence[Compared]) -> list[str]:
    setup = found.setup
    name = papers_name(str(found.model["name"]))
    said = [f"{b} is left out: {setup.missing(b)}" for b in table.benchmarks if setup.missing(b)]
    for one in every:
        said += [note for b, answered in one.answered.items() if (note := judge_note(b, answered))]
    own = name if table.printed(name) else ""
    used = ", ".join(f"{n} = {method_name(m)}" for n, m in forms(setup).items() if m is not None)
    same = f"The paper's figures of {own} are beside those of this model." if own else "The paper has no such model."
    return [*said, f"Forms: {used}.", f"{same} Rows of `{PAPER}` have its figures alone.", ALPHA_NOTE]


def judge_note(benchmark: str, answered: Answered) -> str:
    """What is missing, if some answers were not rated, and who rated the others."""
    if not answered.task.judged:
        return ""
    folder = answered.evaluated.summary.folder
    rows = [row for row in answered.evaluated.summary.rows if row.task == answered.name]
    said = "; ".join(f"{row.method}: {row.note}" for row in rows if row.note)
    missing = any(math.isnan(row.figures[row.headline].value) for row in rows)
    how = f". Rate them with `heal score {folder} --judge NAME`, then run this study again" if missing else ""
    return f"{benchmark}, {said}{how}." if said else ""


def figures(every: Sequence[Compared]) -> dict[str, Draw]:
    """One figure per distribution."""
    return {one.distribution: partial(_figure, one) for one in every}


def _figure(compared: Compared) -> Figure:
    from heal.plots.differences import Panel, differences

    names = [name for name in forms(compared.found.setup) if name != PLAIN]
    panels = []
    for column in compared.columns:
        rows = {name: compared.answered[column.benchmark].row(name) for name in names}
        own = {name: column.difference(row).interval for name, row in rows.items()}
        panels.append(Panel(column.heading, compared.expected(column) == "↓", own))
    return differences(panels, names)


# ── several runs in one table ─────────────────────────────────────────────────────────────────────────────


def merged(folders: Sequence[str | Path], study: str = "table2") -> Table:
    """The rows of several models, each from a run with its own `--out`, and the paper's rows of all other models."""
    own: list[Row] = []
    printed_only: dict[tuple[str, ...], Row] = {}
    used = set[str]()
    for folder in folders:
        for row in _stored_rows(Path(folder) / study / "table.json"):
            if row.labels["distribution"] == PAPER:
                printed_only[tuple(row.labels.values())] = row
            else:
                own.append(row)
                used.add(papers_name(row.labels["model"]))
    rest = [row for row in printed_only.values() if row.labels["model"] not in used]
    return Table(study, [*own, *rest])


def _stored_rows(path: Path) -> list[Row]:
    stored = strict_json.read(path, RunError, "`heal study` with this folder as --out")
    try:
        return [
            Row(row["labels"], {heading: _cell(cell) for heading, cell in row["values"].items()})
            for row in stored["tables"][0]["rows"]
        ]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise RunError(f"{path} is not a table of `heal study`: {error}") from error


def _cell(cell: Any) -> Cell:
    if not isinstance(cell, dict):
        found: Cell = cell
        return found
    undefined = {name: math.nan for name in ("value", "low", "high") if cell[name] is None}
    return Value(**cell | undefined)
