"""Fig. 8: how head types change within an update interval, counted from the step of the refresh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import Interval
from heal.studies.setup import Setup
from heal.studies.statistics import FEWEST, mean_interval
from heal.studies.study import Found, Outcome, Part, Report, Row, Study, Table, Value, Verdict
from heal.studies.traces import TracedAnswer, answers, plain_traces
from heal.studies.verdicts import judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYNERGY = int(HeadType.SYNERGY)


@dataclass(frozen=True)
class Change:
    """The types at a refresh compared with those some steps later."""

    unit: str
    later: int
    """Number of steps after the refresh."""
    agreement: float
    """Share of heads with the same type."""
    kept: float
    """Share of the synergy heads of the refresh that are synergy heads later. NaN if there were none."""
    unrelated: float
    """Agreement with the same step of another image's answer, for comparison. NaN if that answer is shorter."""


@dataclass(frozen=True)
class Later:
    """The means at one number of steps after a refresh."""

    steps: str
    """A number, or a range for the whole interval."""
    pairs: int
    agreement: Interval
    kept: Interval
    unrelated: Interval
    gain: Interval
    """Agreement − agreement with an unrelated answer, where both are known."""


def parts(setup: Setup) -> list[Part]:
    return [plain_traces(setup, distribution) for distribution in setup.distributions]


def changes(some: Iterable[TracedAnswer], interval: int) -> list[Change]:
    """All pairs of a refresh (every `interval` steps from the first token on) and a later step of its interval.

    The types at the refresh act from the next step on, the last of them `interval` steps later.
    """
    found: list[Change] = []
    other: TracedAnswer | None = None
    for answer in some:
        last = answer.steps - 1  # without types
        for start in range(0, last, interval):
            later = range(start + 1, min(start + interval + 1, last))
            found += [_change(answer, other, start, step) for step in later]
        other = answer
    return found


def _change(answer: TracedAnswer, other: TracedAnswer | None, start: int, step: int) -> Change:
    before, after = answer.types[start], answer.types[step]
    synergy = before == SYNERGY
    kept = float((after[synergy] == SYNERGY).mean()) if synergy.any() else float("nan")
    unrelated = float("nan")
    if other is not None and step < other.steps - 1:
        unrelated = _agreement(before, other.types[step])
    return Change(answer.unit, step - start, _agreement(before, after), kept, unrelated)


def _agreement(first: UInt8[np.ndarray, "layer head"], second: UInt8[np.ndarray, "layer head"]) -> float:
    return float((first == second).mean())


def by_steps(found: Sequence[Change], seed: int) -> list[Later]:
    """The means at 1, 2, … steps, and last those over the whole interval, with intervals over images."""
    steps = sorted({change.later for change in found})
    each = [_later(str(n), [change for change in found if change.later == n], seed) for n in steps]
    return [*each, _later(f"1 to {steps[-1]}", found, seed)] if steps else []


def _later(steps: str, some: Sequence[Change], seed: int) -> Later:
    units = [change.unit for change in some]

    def mean(values: list[float]) -> Interval:
        return mean_interval(values, units, seed)

    return Later(
        steps,
        len(some),
        mean([c.agreement for c in some]),
        mean([c.kept for c in some]),
        mean([c.unrelated for c in some]),
        mean([c.agreement - c.unrelated for c in some]),
    )


def report(found: Found) -> Report:
    interval = found.setup.heal.interval
    every = {
        d: by_steps(changes(answers(found.records(f"traces {d}")), interval), found.setup.seed)
        for d in found.setup.distributions
    }
    rows = [_row(d, later) for d, some in every.items() for later in some]
    return Report(
        (Table("agreement", rows, "Head types compared with those of the refresh"),),
        [verdict for d, some in every.items() for verdict in _verdicts(d, some)],
        {"agreement": lambda: _figure(every)},
        (
            f"Types are found at every step. Those of step 0, {interval}, … are compared with those of the next "
            f"{interval} steps, in which a method with interval={interval} would use them.",
            "Unrelated: agreement with the same step of another image's description, which is what head and position "
            "alone explain.",
        ),
    )


def _row(distribution: str, later: Later) -> Row:
    values = {
        "agreement": Value.of(later.agreement, digits=3),
        "synergy heads that stay": Value.of(later.kept, digits=3),
        "unrelated": Value.of(later.unrelated, digits=3),
        "gain over unrelated": Value.of(later.gain, digits=3, expected="↑"),
    }
    return Row({"distribution": distribution, "steps": later.steps}, {**values, "pairs": later.pairs})


def _verdicts(distribution: str, some: Sequence[Later]) -> list[Verdict]:
    claim = f"types of a refresh fit the following steps better than those of another answer ({distribution})"
    if not some:
        return [Verdict(claim, Outcome.TOO_FEW, f"{claim}: too few tokens, because no answer has three")]
    first, last, whole = some[0], some[-2], some[-1]
    gain = Value.of(whole.gain, expected="↑", digits=3, n=whole.pairs)
    if whole.pairs < FEWEST:
        gain = Value(whole.gain.value, expected="↑", digits=3, n=whole.pairs)
    text = (
        f"share of heads with the type of the refresh ({distribution}): {Value.of(first.agreement, digits=3)} after "
        f"{first.steps} and {Value.of(last.agreement, digits=3)} after {last.steps} steps; with an unrelated answer "
        f"{Value.of(whole.unrelated, digits=3)}"
    )
    return [judged(claim, gain, "pairs of steps"), Verdict("types after a refresh", Outcome.MEASURED, text)]


def _figure(found: dict[str, list[Later]]) -> Figure:
    from heal.plots.within_interval import within_interval

    return within_interval(found)


STUDY = Study(
    "within-interval",
    "how head types change within an update interval: agreement with the refresh after 1, 2, … steps",
    "Fig. 8",
    parts,
    report,
)
