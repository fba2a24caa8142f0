"""What the studies of HEAL's settings have in common: agreement of head types, drift, and POPE F1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import Interval
from heal.studies.agreement import (
    ALPHA,
    LANGUAGE,
    NOTHING,
    VISUAL,
    Agreement,
    Typed,
    agreement,
    drift,
    share,
    typed,
)
from heal.studies.paper import printed
from heal.studies.statistics import Compared
from heal.studies.study import Cell, Found, Report, Row, Table, Value
from heal.studies.traces import answers
from heal.studies.variants import PLAIN, SWAPPED, Variant, traces_name
from heal.studies.verdicts import enough

if TYPE_CHECKING:
    from matplotlib.figure import Figure

F1 = "f1"


@dataclass(frozen=True)
class Topic:
    """What is varied, and which agreement counts."""

    what: str
    """In sentences: `masking`."""
    against: str
    """The setting that the paper compares with."""
    figure: Literal["same", "redundant"] = "same"
    """Equal types, or equally redundant or not."""

    @property
    def heading(self) -> str:
        """What agrees: `same type as gaussian`."""
        return "same type" if self.figure == "same" else "same redundancy"

    @property
    def claim(self) -> str:
        return "heads have the same types" if self.figure == "same" else "the same heads are redundant"

    def of(self, found: Agreement) -> Interval:
        return found.same if self.figure == "same" else found.redundant

    def kappa(self, found: Agreement) -> Interval:
        return found.kappa if self.figure == "same" else found.redundant_kappa


@dataclass(frozen=True)
class Result:
    """What was found for one setting on one distribution."""

    variant: Variant
    agreements: Mapping[str, Agreement]
    """With the reference and with the paper's default, by label; not with itself."""
    synergy: Interval
    """Share of synergy heads, in percent."""
    drift: Mapping[str, Compared]
    f1: Interval
    f1_difference: Interval | None
    """To the reference, paired. None for the reference and without answers."""

    @property
    def label(self) -> str:
        return self.variant.label

    def paper(self, *names: str) -> Any:
        """A figure of the paper's robustness tables; None if it prints none."""
        place: Any = printed("robustness") if self.variant.paper else None
        for name in (*self.variant.paper, *names):
            place = place.get(name) if isinstance(place, Mapping) else None
        return place


Results = Mapping[str, Sequence[Result]]
"""By distribution, the reference first."""


def results(found: Found, variants: Sequence[Variant], topic: Topic) -> Results:
    return {d: _of_distribution(found, variants, d, topic) for d in found.setup.distributions}


def types_of(found: Found, variants: Sequence[Variant], distribution: str) -> dict[str, dict[str, Typed]]:
    """The types of every answer by setting and sample. Settings that need no traces use those of the reference."""
    source = found.records(traces_name(distribution, variants[0].label))
    every: dict[str, dict[str, Typed]] = {variant.label: {} for variant in variants}
    for answer in answers(source):
        for variant in variants:
            if variant.types is not None:
                every[variant.label][answer.id] = typed(answer, variant.types(answer))
    for variant in variants:
        if variant.types is None:
            records = found.records(traces_name(distribution, variant.label))
            every[variant.label] = {answer.id: typed(answer) for answer in answers(records)}
    return every


def _of_distribution(found: Found, variants: Sequence[Variant], distribution: str, topic: Topic) -> list[Result]:
    every, seed = types_of(found, variants, distribution), found.setup.seed
    others = dict.fromkeys(label for label in (variants[0].label, topic.against) if label in every)
    made = []
    for variant in variants:
        own = every[variant.label]
        f1, difference = pope_f1(found, variant, distribution)
        made.append(
            Result(
                variant,
                {label: agreement(every[label], own, seed) for label in others if label != variant.label},
                share(own.values(), HeadType.SYNERGY, seed),
                drift(list(own.values()), seed),
                f1,
                difference if variant is not variants[0] else None,
            )
        )
    return made


def pope_f1(found: Found, variant: Variant, distribution: str) -> tuple[Interval, Interval | None]:
    """POPE F1 and its paired difference to the reference."""
    part = SWAPPED if variant.swaps and SWAPPED in found.parts else "pope"
    if not variant.answers:
        return NOTHING, None
    evaluated, task = found.evaluation(part), found.setup.task_name("pope", distribution)
    row = evaluated.row(task, variant.label)
    if row.differences is None:
        return row.figures[F1], None
    images = len({sample.unit for sample in evaluated.samples.get(task, ())})
    return row.figures[F1], enough(Value.of(row.differences[F1], n=images or None)).interval


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────


def agreement_table(found: Found, every: Results, topic: Topic) -> Table:
    rows = []
    for distribution, own in every.items():
        rows += [Row(_labels(distribution, result, own), _agreement_cells(result, own[0], topic)) for result in own]
        task = found.setup.task_name("pope", distribution)
        f1 = found.evaluation("pope").row(task, PLAIN).figures[F1]
        rows.append(Row({"distribution": distribution, "setting": PLAIN}, {"POPE F1": Value.of(f1)}))
    return Table("agreement", rows, "Head types compared with the reference, and POPE F1")


def _labels(distribution: str, result: Result, own: Sequence[Result]) -> dict[str, str]:
    mark = " (reference)" if result is own[0] else ""
    return {"distribution": distribution, "setting": result.label + mark}


def _agreement_cells(result: Result, reference: Result, topic: Topic) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for label in dict.fromkeys((reference.label, topic.against)):
        agreed = result.agreements.get(label)
        paper = result.paper("agreement") if label == topic.against and label != result.label else None
        known = None if agreed is None else percent(topic.of(agreed), paper, agreed.answers)
        cells[f"{topic.heading} as {label}, %"] = known
        cells[f"κ with {label}"] = None if agreed is None else Value.of(topic.kappa(agreed))
    cells["synergy heads, %"] = percent(result.synergy)
    cells["POPE F1"] = Value.of(result.f1, paper=result.paper("pope_f1"))
    difference = result.f1_difference
    cells["difference of F1"] = None if difference is None else Value.of(difference, expected="=")
    return cells


def percent(interval: Interval, paper: float | None = None, n: int | None = None) -> Value:
    return Value.of(interval, paper=paper, n=n, digits=1)


def drift_table(every: Results) -> Table:
    rows = [
        Row(_labels(distribution, result, own), _drift_cells(result))
        for distribution, own in every.items()
        for result in own
    ]
    return Table("drift", rows, "The mix of synergy heads at correct and hallucinated object names")


SIDES = {ALPHA: "", VISUAL: "visual", LANGUAGE: "language"}
"""Names in paper.json, where the ratios are. It prints no α_vis."""


def _drift_cells(result: Result) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name in SIDES:
        compared, (good, bad) = result.drift[name], _ratios(result, name)
        cells[f"{name}, correct"] = Value.of(compared.mean_correct, paper=good, n=compared.correct, digits=3)
        cells[f"{name}, hallucinated"] = Value.of(
            compared.mean_hallucinated, paper=bad, n=compared.hallucinated, digits=3
        )
        cells[f"{name}, difference"] = drift_value(result, name)
    return cells


def _ratios(result: Result, name: str) -> tuple[float | None, float | None]:
    """The paper's figures at correct and at hallucinated tokens."""
    side = SIDES[name]
    return (result.paper("correct", side), result.paper("hallucinated", side)) if side else (None, None)


def drift_value(result: Result, name: str) -> Value:
    """Correct − hallucinated, with the paper's difference and its direction."""
    compared, (good, bad) = result.drift[name], _ratios(result, name)
    difference = None if good is None or bad is None else round(good - bad, 4)
    fewest = min(compared.correct, compared.hallucinated)
    expected = "↓" if name == LANGUAGE else "↑"
    return Value.of(compared.difference, paper=difference, expected=expected, n=fewest, digits=3)


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────

NOTES = (
    "Descriptions are those of the plain model, so every setting measures the same tokens. Agreement is the share of "
    "heads at all tokens; κ is agreement beyond chance (0: chance, 1: complete), because most heads have one type.",
    "α_lang is 1 − α_vis. The paper's ratios do not add up to 1, so they are beside I_vis / I_total and "
    "I_lang / I_total, not beside α_vis. Values are those of the step that generates the first token of a name.",
    "The paper's figures are for LLaVA-1.5-7B (POPE F1 and ratios), and for 50 descriptions by LLaVA-NeXT-7B and "
    "Qwen2.5-VL-7B (agreement).",
    "POPE F1 is with calibration. Differences to the reference are paired by image.",
)


def report(found: Found, variants: Sequence[Variant], topic: Topic, notes: Sequence[str] = ()) -> Report:
    from heal.studies.robustness_verdicts import verdicts

    every = results(found, variants, topic)
    return Report(
        (agreement_table(found, every, topic), drift_table(every)),
        verdicts(every, topic),
        {topic.what.replace(" ", "-"): lambda: _figure(every, topic)},
        [*NOTES, *left_out(every), *notes],
    )


def left_out(every: Results) -> list[str]:
    """Which descriptions could not be compared."""
    lost = {
        f"{result.label} ({distribution})": most
        for distribution, own in every.items()
        for result in own
        if (most := max((agreed.different for agreed in result.agreements.values()), default=0))
    }
    shown = ", ".join(f"{number} of {label}" for label, number in lost.items())
    return [f"Left out because rounding changed their tokens: descriptions {shown}."] if lost else []


def known(interval: Interval | None) -> bool:
    return interval is not None and not (math.isnan(interval.low) or math.isnan(interval.high))


def _figure(every: Results, topic: Topic) -> Figure:
    from heal.plots.robustness import robustness

    return robustness(every, topic)
