"""The interface of a study, and the registry.

A study is one table or figure of the paper. Its module in this folder has a value `STUDY`, and `heal study` finds it
by that. It says what must be measured (`parts`) and turns what was measured into rows, verdicts and figures
(`report`). Both are pure functions: they load no model and write no file. The runner (`heal.studies.running`)
measures the parts, resumes what was interrupted, and writes the report.

Two kinds of parts:

- `Evaluation`: methods × benchmarks, answered and scored by `heal.bench.run.runner.run`. `found.evaluation(name)` is
  an `Evaluated` with the `Summary` and with every answer.
- `Measurement`: a function `measure(vlm, samples) -> [Measured, …]`, one for each sample of the batch, with JSON
  facts and arrays. `found.records(name)` iterates over them in the order of the samples and reads them from disk one
  batch at a time.

Parts with equal content are measured once, whatever studies ask for them. `heal.studies.traces` has the part that
most studies need: descriptions of images by the plain model with all head scores, and labels of every token.

`heads_by_token.py` is a complete example. In short:

    def parts(setup: Setup) -> list[Part]:
        return [plain_traces(setup, distribution) for distribution in setup.distributions]

    def report(found: Found) -> Report:
        answers = [TracedAnswer.of(record) for record in found.records("traces natural")]
        rows = [Row({"distribution": "natural"}, {"synergy heads": Value(3.1, 2.9, 3.3, paper=3.0)})]
        return Report((Table("heads", rows),), (Verdict("drift", Outcome.CONFIRMED, "drift confirmed: …"),))

    STUDY = Study("heads-by-token", "types of heads at correct and hallucinated tokens", "Fig. 1", parts, report)

A study whose second part depends on the results of the first (for example, the perplexity of the answers of an
evaluation) returns it from `follow_up(found)`.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from heal.bench.score.bootstrap import Interval
from heal.errors import ConfigError
from heal.studies.parts import Evaluated, Evaluation, Measured, Measurement, Part, Records
from heal.studies.setup import Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Evaluated",
    "Evaluation",
    "Found",
    "Measured",
    "Measurement",
    "Outcome",
    "Part",
    "Records",
    "Report",
    "Row",
    "Setup",
    "Study",
    "Table",
    "Value",
    "Verdict",
    "available",
    "named",
]

ORDER = (
    "table1", "table2", "recent", "heads-by-token", "head-maps", "within-interval", "interval", "alpha", "causality",
    "masking", "measures", "replacement", "thresholds", "normality", "theory", "pid", "transfer", "cost", "guard",
)  # fmt: skip
"""The order of the list and of `heal study all`. Others come last."""


# ── what was found ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Found:
    """What was measured, by the names of the parts."""

    setup: Setup
    parts: Mapping[str, Evaluated | Records]
    model: Mapping[str, Any] = field(default_factory=dict)
    """name, family, layers, heads, dtype, device and weights of the model."""

    def evaluation(self, name: str) -> Evaluated:
        found = self.parts[name]
        assert isinstance(found, Evaluated), f"{name} is a measurement: use records()"
        return found

    def records(self, name: str) -> Records:
        found = self.parts[name]
        assert isinstance(found, Records), f"{name} is an evaluation: use evaluation()"
        return found


# ── what a study reports ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Value:
    """A number of a table, with its interval and with what the paper prints."""

    value: float
    low: float = float("nan")
    high: float = float("nan")
    paper: float | str | None = None
    expected: str = ""
    """The direction that the paper's claim implies for this number: ↑ (above the reference), ↓ or =."""
    n: int | None = None
    """Number of tokens, answers or images behind it."""
    digits: int = 2

    @classmethod
    def of(cls, interval: Interval, **more: Any) -> Value:
        return cls(interval.value, interval.low, interval.high, **more)

    @property
    def interval(self) -> Interval:
        return Interval(self.value, self.low, self.high)

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))

    def __str__(self) -> str:
        """Such as `0.10 (0.08 to 0.12)`."""
        if math.isnan(self.value):
            return "–"
        number, low, high = (f"{x:.{self.digits}f}" for x in (self.value, self.low, self.high))
        return f"{number} ({low} to {high})" if self.has_interval else number


Cell = Value | int | str | None


@dataclass(frozen=True)
class Row:
    """A row: leading columns that say what it is about, and values by column heading."""

    labels: Mapping[str, str]
    values: Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """One table. Rows may have different columns; missing cells are empty."""

    name: str
    """Part of the file name of every table but the first: lower case, digits and hyphens."""
    rows: Sequence[Row]
    title: str = ""


class Outcome(StrEnum):
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    CONTRADICTED = "contradicted"
    CONSISTENT = "consistent"
    """The claim is that two things are equal, and the interval of their difference contains zero."""
    TOO_FEW = "too few"
    """Too few tokens, answers or images for an interval."""
    MEASURED = "measured"
    """The paper makes no claim to compare with."""


@dataclass(frozen=True)
class Verdict:
    """What the data says about one claim, in one sentence."""

    claim: str
    outcome: Outcome
    text: str


Draw = Callable[[], "Figure"]


@dataclass(frozen=True)
class Report:
    """The result of a study."""

    tables: Sequence[Table]
    """The first one is table.csv, the others are table-NAME.csv."""
    verdicts: Sequence[Verdict]
    figures: Mapping[str, Draw] = field(default_factory=dict)
    """Functions that draw. The first one is figure.png and figure.svg, the others are figure-NAME.png and .svg."""
    notes: Sequence[str] = ()
    """What a reader must know: how it was measured, and what is different from the paper."""


# ── the study ─────────────────────────────────────────────────────────────────────────────────────────────


def _nothing_more(found: Found) -> Sequence[Part]:
    return ()


@dataclass(frozen=True)
class Study:
    """A named study."""

    name: str
    summary: str
    """One line for the list."""
    paper: str
    """The table or figure of the paper."""
    parts: Callable[[Setup], Sequence[Part]]
    """What must be measured. The names of the parts are unique within the study."""
    report: Callable[[Found], Report]
    follow_up: Callable[[Found], Sequence[Part]] = _nothing_more
    """Further parts, which depend on what the first ones found."""
    benchmarks: tuple[str, ...] = ("chair",)
    """Official names of the benchmarks whose data it needs (`Setup.task`)."""
    any_of: tuple[str, ...] = ()
    """Benchmarks of which it needs at least one, and uses those that are there (`Setup.present`)."""

    @property
    def data(self) -> tuple[str, ...]:
        """All benchmarks that it can use."""
        return self.benchmarks + self.any_of

    def missing(self, setup: Setup) -> str:
        """Why it cannot be measured: which data is missing, and where to get it. Empty if nothing is missing."""
        problems = [problem for name in self.benchmarks if (problem := setup.missing(name))]
        others = [setup.missing(name) for name in self.any_of]
        return problems[0] if problems else "; or ".join(others) if others and all(others) else ""


def available() -> dict[str, Study]:
    """All studies of this package by name: every module of this folder that has a STUDY."""
    import heal.studies

    modules = [import_module(f"heal.studies.{m.name}") for m in pkgutil.iter_modules(heal.studies.__path__)]
    found = {m.STUDY.name: m.STUDY for m in modules if hasattr(m, "STUDY")}
    places = {name: place for place, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: (places.get(item[0], len(ORDER)), item[0])))


def named(names: Sequence[str]) -> list[Study]:
    """The studies with these names; `all` alone is every study."""
    known = available()
    if list(names) == ["all"]:
        return list(known.values())
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no study {name!r}: choose from {', '.join(known)}, all or list")
    return [known[name] for name in dict.fromkeys(names)]
