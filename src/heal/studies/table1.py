"""Table 1: all methods on POPE, CHAIR and MME, beside what the paper prints for LLaVA-1.5-7B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from heal.bench.run.names import method_name
from heal.bench.score.summary import Row as Scored
from heal.methods import Guard, available
from heal.studies.answered import CHAIR_I, EQUAL_RECALL, EQUAL_RECALL_NOTE, Answered
from heal.studies.paper import printed
from heal.studies.paper_table import ALPHA_NOTE, PLAIN, Column, direction
from heal.studies.parts import Part
from heal.studies.setup import Setup
from heal.studies.study import Cell, Found, Report, Row, Study, Table, Value, Verdict
from heal.studies.table1_methods import (
    ABSENT,
    BENCHMARKS,
    F1,
    FEWER,
    MME,
    Group,
    groups,
    is_ours,
    methods,
    ours_of,
    papers_change,
    papers_figure,
    present_columns,
    printed_of,
    rows_in_order,
)
from heal.studies.table1_verdicts import Standing, verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def parts(setup: Setup) -> list[Part]:
    return [evaluation for group in groups(setup) for evaluation in group.evaluations()]


# ── what was found ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Results:
    """The answers of one group on one distribution."""

    group: Group
    answered: Mapping[str, Answered]
    """By benchmark."""
    left_out: Mapping[str, str]
    """Why, by method."""

    @classmethod
    def of(cls, found: Found, group: Group, distribution: str) -> Results:
        answered = {}
        left_out: dict[str, str] = {}
        for benchmark in group.setup.present(*BENCHMARKS):
            evaluated = found.evaluation(group.part(benchmark))
            task = group.setup.task(benchmark, distribution)
            name = group.setup.task_name(benchmark, distribution)
            answered[benchmark] = Answered(evaluated, name, task, group.setup.seed)
            left_out |= evaluated.left_out
        return cls(group, answered, left_out)

    @property
    def methods(self) -> list[str]:
        return [name for name in self.group.methods if name not in self.left_out]

    @property
    def images(self) -> int:
        return max(len({s.unit for s in answered.samples}) for answered in self.answered.values())

    def row(self, benchmark: str, method: str) -> Scored | None:
        return self.answered[benchmark].row(method) if benchmark in self.answered else None


def report(found: Found) -> Report:
    setup = found.setup
    rows: list[Row] = []
    changes: list[Row] = []
    said: list[Verdict] = []
    figures = {}
    left_out: dict[str, str] = {}
    for distribution in setup.distributions:
        results = [Results.of(found, group, distribution) for group in groups(setup)]
        own = {name: result for result in reversed(results) for name in result.methods}
        rows += _rows(distribution, setup, own, results)
        compared = [name for name in methods(setup) if name in own and name != PLAIN]
        differences = [_changes(distribution, setup, name, own[name]) for name in compared]
        changes += differences
        said += verdicts(distribution, [_standing(setup, result, own) for result in results])
        figures[distribution] = partial(_figure, differences, setup)
        for result in results:
            left_out |= result.left_out
    tables = (
        Table("table1", rows, "Methods on POPE, CHAIR and MME"),
        Table("differences", changes, "Paired differences to the plain model"),
    )
    return Report(tables, said, figures, _notes(setup, left_out))


def _standing(setup: Setup, result: Results, own: Mapping[str, Results]) -> Standing:
    every = methods(setup)
    ours = ours_of(setup, result.methods)
    rivals = [n for n in result.methods if own[n] is result and every[n] is not None and n not in ours]
    guards = [name for name in ours if isinstance(every[name], Guard)]
    return Standing(result.answered, ours, rivals, printed_of(setup), guards)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(distribution: str, setup: Setup, own: Mapping[str, Results], results: Sequence[Results]) -> list[Row]:
    """The plain model, the paper's methods in its order, and the rest."""
    papers = printed_of(setup)
    columns = present_columns(setup)
    left_out = {name: why for result in results for name, why in result.left_out.items()}
    found: list[Row] = []
    for key, name in rows_in_order(setup):
        labels = {"distribution": distribution, "method": name}
        if name in own:
            values = _cells(columns, own[name], name, papers.get(name))
            found.append(Row(labels | {"note": _remark(own[name], name)}, values))
            continue
        known = papers.get(name) or printed("table1", "methods").get(key)
        note = f"left out: {left_out[name]}" if name in left_out else _why_not(key)
        found.append(Row(labels | {"note": note}, _printed_cells(columns, known)))
    return found


def _why_not(key: str) -> str:
    return ABSENT if key not in available() else "not measured"


def _cells(columns: Sequence[Column], result: Results, name: str, paper: Mapping[str, Any] | None) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    for column in columns:
        row = result.row(column.benchmark, name)
        assert row is not None
        expected = direction(papers_change(column, paper))
        found[column.heading] = column.value(row, papers_figure(column, paper), expected)
        if column.heading == CHAIR_I:
            found[EQUAL_RECALL] = None if row.equal_recall is None else Value.of(row.equal_recall.mean)
    return found | {"images": result.images}


def _printed_cells(columns: Sequence[Column], paper: Mapping[str, Any] | None) -> dict[str, Cell]:
    if paper is None:
        return {}
    return {c.heading: c.only_printed(c.printed(paper), direction(papers_change(c, paper))) for c in columns}


def _changes(distribution: str, setup: Setup, name: str, result: Results) -> Row:
    paper = printed_of(setup).get(name)
    values: dict[str, Cell] = {}
    for column in present_columns(setup):
        row = result.row(column.benchmark, name)
        assert row is not None
        against = papers_change(column, paper)
        values[column.heading] = column.difference(row, against, direction(against))
        if column.heading == CHAIR_I:
            values[EQUAL_RECALL] = None if row.equal_recall is None else Value.of(row.equal_recall.mean)
    return Row({"distribution": distribution, "method": name}, values | {"images": result.images})


def _remark(result: Results, name: str) -> str:
    """What a reader must know about the answers of a method."""
    rows = {benchmark: answered.row(name) for benchmark, answered in result.answered.items()}
    failed = sum(row.failed for row in rows.values())
    same = [benchmark for benchmark, row in rows.items() if row.unchanged]
    found = [f"{failed} answers failed"] if failed else []
    return "; ".join([*found, f"same answers as plain on {', '.join(same)}"] if same else found)


# ── notes and figure ──────────────────────────────────────────────────────────────────────────────────────


def _notes(setup: Setup, left_out: Mapping[str, str]) -> tuple[str, ...]:
    found = [f"{name} is left out: {why}" for name, why in left_out.items()]
    found += [f"{b} is left out: {setup.missing(b)}" for b in BENCHMARKS if setup.missing(b)]
    if len(groups(setup)) > 1:
        slow = [name for name, method in methods(setup).items() if method is not None and method.one_sample]
        found.append(
            f"{', '.join(slow)}: one image in {FEWER}, because prompts are answered one by one. Differences are to "
            "the plain model on the same images."
        )
    forms = ", ".join(f"{n} = {method_name(m)}" for n, m in methods(setup).items() if m is not None and is_ours(m))
    return (
        *found,
        f"Ours: {forms}. All other methods have their published settings, which were chosen on LLaVA-1.5.",
        ALPHA_NOTE,
        EQUAL_RECALL_NOTE,
        "The paper's figures are those of LLaVA-1.5-7B. Its table has no greedy row: `beam` equals the plain model "
        "of its Table 2, so its differences, and the directions, are to `beam`.",
    )


def _figure(rows: Sequence[Row], setup: Setup) -> Figure:
    from heal.plots.differences import Panel, differences

    there = [heading for heading in (CHAIR_I, EQUAL_RECALL, F1, MME) if any(heading in row.values for row in rows)]
    own = {row.labels["method"]: row.values for row in rows}
    panels = [
        Panel(
            heading,
            heading in (CHAIR_I, EQUAL_RECALL),
            {name: cell.interval for name, cells in own.items() if isinstance(cell := cells.get(heading), Value)},
        )
        for heading in there
    ]
    return differences(panels, ours_of(setup, list(own)))


STUDY = Study(
    "table1",
    "all methods on POPE, CHAIR and MME: differences to the plain model and to each other",
    "Table 1",
    parts,
    report,
    benchmarks=(),
    any_of=BENCHMARKS,
)
