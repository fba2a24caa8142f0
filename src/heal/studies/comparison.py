"""Comparison of methods, in the layout of the paper's main table: quality, recall, length, yes-ratio, cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heal.bench.score.bootstrap import Interval
from heal.bench.score.equal_recall import EqualRecall
from heal.bench.score.summary import Row, Summary
from heal.escape import markdown_cell
from heal.methods import HEAL, OPERA, PAI, SID, VAR, VCD, VHR, Beam, DoLa, MemVR, Method, available

STRENGTHS: Mapping[str, tuple[Method, ...]] = {
    "beam": tuple(Beam(n) for n in (2, 3, 5, 8)),
    "dola": (DoLa(strength=0.25), DoLa(strength=0.5), DoLa(), DoLa(bucket="high")),
    "heal": tuple(HEAL(alpha=a) for a in (0.4, 0.5, 0.6, 0.7)),
    "heal one-sided": tuple(HEAL(alpha=a, drift="language") for a in (0.4, 0.5, 0.6, 0.7)),
    "memvr": tuple(MemVR(ratio=r) for r in (0.06, 0.12, 0.2, 0.3)),
    "opera": tuple(OPERA(alpha=a) for a in (0.5, 1.0, 2.0, 4.0)),
    "pai": (PAI(alpha=0.1), PAI(alpha=0.2), PAI(alpha=0.5), PAI(alpha=0.5, gamma=1.0)),
    "sid": tuple(SID(alpha=a) for a in (0.25, 0.5, 1.0, 1.5)),
    "var": tuple(VAR(rho=r) for r in (0.3, 0.5, 0.7, 0.9)),
    "vcd": tuple(VCD(alpha=a) for a in (0.25, 0.5, 1.0, 1.5)),
    "vhr": tuple(VHR(alpha=a) for a in (1.25, 1.5, 2.0, 2.5)),
}
"""Four settings per method: the same budget for each when strengths are tuned on the validation split."""

EMBEDDED_HEAL = HEAL(alpha=0.5, drift="language")
"""The form of HEAL that was best for the embedded model on the validation split (docs/results.md)."""

NOT_FIRED = "no"

LONG = 8
"""Minimum mean number of tokens of an answer for a meaningful time per token."""

CHAIR_I = "CHAIR_i ↓"
AT_EQUAL_RECALL = "at equal recall"
"""Heading of the difference of CHAIR_i to the first method at equal object recall."""

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("pope", "f1", "POPE F1"),
    ("pope", "accuracy", "POPE acc."),
    ("pope", "yes_ratio", "yes %"),
    ("chair", "chair_s", "CHAIR_s ↓"),
    ("chair", "chair_i", CHAIR_I),
    ("chair", "recall", "Recall"),
    ("chair", "len", "Len"),
    ("mme", "total", "MME"),
)
"""Task, figure and heading."""


@dataclass(frozen=True)
class ComparisonRow:
    """Results of one method over all tasks."""

    method: str
    figures: Mapping[str, Interval]
    """Figures by column heading."""
    differences: Mapping[str, Interval]
    """Paired differences to the first method; empty for the first."""
    time_ratio: float
    """Ratio of the time per token after the first, on the task with the longest answers; NaN if all are short."""
    memory: int
    fired: bool | None
    """None for the plain model."""
    numbers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Numbers of answered and of all samples, by column heading."""
    equal_recall: EqualRecall | None = None
    """CHAIR_i compared with the first method at equal recall; None for the first, and without captions."""


def published() -> dict[str, Method | None]:
    """Every method with its published defaults, the plain model first. A guard needs a detector of the model."""
    return {"plain": None} | {name: kind() for name, kind in available().items() if not kind.wraps}


def comparison_rows(summary: Summary) -> list[ComparisonRow]:
    """One row per method, from a run of any of POPE, CHAIR and MME, official or in miniature."""
    methods = list(dict.fromkeys(row.method for row in summary.rows))
    return [_row(method, [row for row in summary.rows if row.method == method]) for method in methods]


def _row(method: str, rows: Sequence[Row]) -> ComparisonRow:
    by_task = {row.task.partition(":")[0].removeprefix("mini-"): row for row in rows}
    known = [(by_task[task], figure, heading) for task, figure, heading in COLUMNS if task in by_task]
    timed = [(r.mean_tokens, r.time_ratio) for r in rows if r.mean_tokens >= LONG and not math.isnan(r.time_ratio)]
    return ComparisonRow(
        method,
        {heading: row.figures[figure] for row, figure, heading in known if figure in row.figures},
        {
            heading: row.differences[figure]
            for row, figure, heading in known
            if row.differences and figure in row.differences
        },
        max(timed, default=(0.0, math.nan))[1],
        max((row.memory for row in rows), default=0),
        None if all(row.fired is None for row in rows) else any(row.fired for row in rows),
        {heading: (row.answered, row.asked) for row, _, heading in known},
        next((row.equal_recall for row in rows if row.equal_recall), None),
    )


def cells(table: Sequence[ComparisonRow]) -> tuple[list[str], list[list[str]]]:
    """Column headings and rows as strings."""
    figures = list(dict.fromkeys(h for line in table for h in line.figures))
    captions = any(line.equal_recall for line in table)
    rows = []
    for line in table:
        fired = "–" if line.fired is None else "yes" if line.fired else NOT_FIRED
        ratio = "–" if math.isnan(line.time_ratio) else f"{line.time_ratio:.2f}"
        own = [_cell(line, heading) for heading in figures]
        if captions:
            own.insert(_after_chair(figures), _gain(line))
        rows.append([line.method, *own, ratio, f"{line.memory / 2**20:,.0f} MiB", fired])
    headings = list(figures)
    if captions:
        headings.insert(_after_chair(figures), AT_EQUAL_RECALL)
    return ["method", *headings, "time ratio", "memory", "fired"], rows


def _after_chair(figures: Sequence[str]) -> int:
    return figures.index(CHAIR_I) + 1 if CHAIR_I in figures else len(figures)


def _gain(line: ComparisonRow) -> str:
    """The mean difference of CHAIR_i at equal recall, starred if its interval excludes zero."""
    found = line.equal_recall
    if found is None or math.isnan(found.mean.value):
        return "–"
    return f"{found.mean.value:+.2f}{'*' if found.mean.excludes_zero else ''}"


def markdown(table: Sequence[ComparisonRow]) -> str:
    """The table as Markdown. Method names are escaped, because users may choose them."""
    headings, rows = cells(table)
    out = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for method, *own, fired in rows:
        fired = f"**{fired}**" if fired == NOT_FIRED else fired
        out.append(f"| {' | '.join([markdown_cell(method), *own, fired])} |")
    return "\n".join(out) + "\n"


def _cell(line: ComparisonRow, heading: str) -> str:
    """A figure with its difference to the first method, starred if the interval excludes zero, and with the number of
    samples if some are missing."""
    answered, asked = line.numbers.get(heading, (0, 0))
    fewer = f" n={answered} of {asked}" if answered < asked else ""
    if heading not in line.figures or math.isnan(line.figures[heading].value):
        return f"–{fewer}"
    text = f"{line.figures[heading].value:.1f}{fewer}"
    difference = line.differences.get(heading)
    if difference is None or math.isnan(difference.value):
        return text
    return f"{text} ({difference.value:+.1f}{'*' if difference.excludes_zero else ''})"


def csv_rows(table: Sequence[ComparisonRow]) -> list[dict[str, object]]:
    """One row per method and figure, with intervals."""
    rows = []
    for line in table:
        found: list[tuple[str, Interval | None, Interval | None]] = [
            (heading, value, line.differences.get(heading)) for heading, value in line.figures.items()
        ]
        if line.equal_recall:
            found += [
                ("CHAIR_i at equal recall", None, line.equal_recall.mean),
                ("CHAIR_i at the highest equal recall", None, line.equal_recall.highest),
            ]
        rows += [_csv_row(line, *one) for one in found]
    return rows


def _csv_row(
    line: ComparisonRow, heading: str, value: Interval | None, difference: Interval | None
) -> dict[str, object]:
    answered, asked = line.numbers.get(heading, (None, None))
    return {
        "method": line.method,
        "figure": heading.removesuffix(" ↓"),
        "value": value.value if value else None,
        "low": value.low if value else None,
        "high": value.high if value else None,
        "difference": difference.value if difference else None,
        "difference_low": difference.low if difference else None,
        "difference_high": difference.high if difference else None,
        "n": answered,
        "n_asked": asked,
        "time_ratio": line.time_ratio,
        "memory": line.memory,
        "fired": line.fired,
    }
