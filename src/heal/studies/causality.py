"""Table 4 and Fig. 7: does less visual information make answers hallucinated, and does more of it correct them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Counts, totals
from heal.methods import Method
from heal.methods.heal import Heads
from heal.studies.alpha import at
from heal.studies.answered import Answered
from heal.studies.changes import Count, changes, labelled, of_objects, of_verdict, rates
from heal.studies.parts import Evaluation, Part
from heal.studies.setup import Setup
from heal.studies.statistics import FEWEST
from heal.studies.study import Cell, Found, Report, Row, Study, Table, Value, Verdict
from heal.studies.verdicts import enough, judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOWN, UP = (0.1, 0.2, 0.3), (0.7, 0.8, 0.9)
LOWEST, HIGHEST = DOWN[0], UP[-1]
SYNERGY, RANDOM = "synergy heads", "random heads"
HEADS: Mapping[str, Heads] = {SYNERGY: "synergy", RANDOM: "permuted"}
PLAIN, ANSWERS = "plain", "answers"
BECAME, CORRECTED, LOST = "became hallucinated %", "corrected %", "correct objects lost %"
DIFFERENCE = "difference"


@dataclass(frozen=True)
class Kind:
    """A kind of answers."""

    name: str
    benchmark: str
    count: Count
    label: str | None = None
    """Only questions with this correct answer."""


ABSENT, OBJECTS = "POPE, absent objects", "objects in captions"
KINDS = (
    Kind("POPE", "pope", of_verdict),
    Kind(ABSENT, "pope", of_verdict, "no"),
    Kind("MME", "mme", of_verdict),
    Kind(OBJECTS, "chair", of_objects),
)


def name(alpha: float, heads: str) -> str:
    return f"α = {alpha}, {heads}"


def settings(setup: Setup) -> dict[str, Method | None]:
    """The plain model, and HEAL at low and high equilibria, on synergy heads and on random ones."""
    found: dict[str, Method | None] = {PLAIN: None}
    for alpha in (*DOWN, *UP):
        form = at(setup.heal, alpha, "both")
        found |= {name(alpha, heads): replace(form, heads=kind) for heads, kind in HEADS.items()}
    return found


def parts(setup: Setup) -> list[Part]:
    return [Evaluation(ANSWERS, setup.tasks("pope", "mme", "chair"), settings(setup), setup.settings)]


# ── counting ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Changed:
    """The changes from the plain model of every method, for one kind of answers: counts by image."""

    counts: Mapping[str, Mapping[str, Counts]]
    seed: int = 0

    @classmethod
    def of(cls, answered: Answered, kind: Kind, methods: Sequence[str]) -> Changed:
        samples, before = labelled(answered.samples, kind.label), answered.parses(PLAIN)
        return cls(
            {m: changes(samples, before, answered.parses(m), kind.count) for m in methods if m != PLAIN},
            answered.seed,
        )

    @property
    def numbers(self) -> dict[str, int]:
        """Correct and hallucinated answers of the plain model."""
        sums = totals(next(iter(self.counts.values()), {}).values())
        return {key: int(sums.get(key, 0)) for key in ("correct", "hallucinated")}

    @property
    def images(self) -> int:
        return len(next(iter(self.counts.values()), {}))

    def base(self, rate: str) -> int:
        """What a rate is relative to."""
        return self.numbers["hallucinated" if rate == "corrected" else "correct"]

    def rate(self, method: str, rate: str) -> Value:
        return self._value(bootstrap.intervals(rates, self.counts[method], self.seed)[rate], rate)

    def difference(self, first: str, second: str, rate: str) -> Value:
        """Second − first, paired by image."""
        one, other = self.counts[first], self.counts[second]
        both = [unit for unit in one if unit in other]
        before, after = ({unit: own[unit] for unit in both} for own in (one, other))
        return self._value(bootstrap.differences(rates, before, after, self.seed)[rate], rate)

    def _value(self, found: Interval, rate: str) -> Value:
        """Without interval if it is relative to too few answers."""
        number = self.base(rate)
        shown = found if number >= FEWEST else replace(found, low=float("nan"), high=float("nan"))
        return Value.of(shown, n=number, digits=1)


def changed(found: Found, distribution: str) -> dict[str, Changed]:
    """By kind of answers."""
    every = {kind.benchmark: Answered.of(found, ANSWERS, kind.benchmark, distribution) for kind in KINDS}
    methods = list(settings(found.setup))
    return {kind.name: Changed.of(every[kind.benchmark], kind, methods) for kind in KINDS}


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


def report(found: Found) -> Report:
    setup = found.setup
    rows: list[Row] = []
    strengths: list[Row] = []
    verdicts: list[Verdict] = []
    figures = {}
    for distribution in setup.distributions:
        by_kind = changed(found, distribution)
        rows += [_row(distribution, kind, alpha, own) for kind, own in by_kind.items() for alpha in (*DOWN, *UP)]
        strengths += _strengths(distribution, Answered.of(found, ANSWERS, "chair", distribution))
        verdicts += [v for kind, own in by_kind.items() for v in _against_random(f"{kind}, {distribution}", own)]
        verdicts += [v for kind in (ABSENT, OBJECTS) for v in _direction(f"{kind}, {distribution}", by_kind[kind])]
        figures[distribution] = lambda by_kind=by_kind: _figure(by_kind)
    tables = (
        Table("causality", rows, "Answers that change with the equilibrium α"),
        Table("strength", strengths, "Size of the intervention, in captions"),
    )
    return Report(tables, verdicts, figures, NOTES)


NOTES = (
    "Of the answers of the plain model that are correct, the share that is wrong with HEAL at this α; of those that "
    "are wrong, the share that is correct. Questions about absent objects: a wrong answer says that the object is "
    "there. Intervals and differences are paired by image.",
    "Objects in captions: distinct objects of an image. Became hallucinated: hallucinated objects that the plain "
    "model does not name, per 100 correct ones that it names. Corrected: hallucinated objects of the plain model "
    "that are not named any more. Lost: the same for correct objects; a shorter caption corrects and loses.",
    "Random heads: at every step the factors of the synergy heads of a layer go to other heads of the layer, in one "
    "random order without a head that keeps its own. The number of calibrated heads and the factors are those of the "
    "synergy heads, so only the choice of heads differs. Where most heads are synergy heads, most random ones are "
    "too.",
    "Any change of a model changes some answers. So the claims are about differences: to random heads, and between "
    "low and high α.",
)


def _row(distribution: str, kind: str, alpha: float, own: Changed) -> Row:
    synergy, control = (name(alpha, heads) for heads in HEADS)
    low = alpha in DOWN
    values: dict[str, Cell] = {}
    for heading, rate, claimed in ((BECAME, "became", low), (CORRECTED, "corrected", not low)):
        values[heading] = own.rate(synergy, rate)
        values[f"{heading}, {RANDOM}"] = own.rate(control, rate)
        difference = own.difference(control, synergy, rate)
        values[f"{heading}, {DIFFERENCE}"] = replace(difference, expected="↑" if claimed else "")
    if kind == OBJECTS:
        values[LOST] = own.rate(synergy, "lost")
        values[f"{LOST}, {RANDOM}"] = own.rate(control, "lost")
    values |= {"correct": own.numbers["correct"], "hallucinated": own.numbers["hallucinated"]}
    return Row({"distribution": distribution, "answers": kind, "α": str(alpha)}, values)


def _strengths(distribution: str, captions: Answered) -> list[Row]:
    """Changed heads per step, and the mean size of the factors there."""
    rows = []
    for alpha in (*DOWN, *UP):
        for heads in HEADS:
            fired = [r.fired for r in captions.records(name(alpha, heads)).values() if r.fired is not None]
            count = sum(own["changes"] for own in fired)
            steps = sum(own["steps"] for own in fired)
            sizes = {
                f"mean |{symbol} − 1|": _mean([(own["sizes"].get(key, 0.0), own["changes"]) for own in fired])
                for symbol, key in (("β", "beta"), ("γ", "gamma"))
            }
            values: dict[str, Cell] = {"heads per step": Value(count / steps if steps else float("nan"), digits=1)}
            values |= {heading: Value(size, digits=3) for heading, size in sizes.items()}
            rows.append(Row({"distribution": distribution, "α": str(alpha), "heads": heads}, values))
    return rows


def _mean(weighted: list[tuple[float, int]]) -> float:
    whole = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / whole if whole else float("nan")


def _against_random(where: str, own: Changed) -> list[Verdict]:
    """At the lowest and the highest α, synergy heads against random heads."""
    made = []
    for alpha, rate, what, missing in (
        (LOWEST, "became", "more answers become hallucinated", "correct answers"),
        (HIGHEST, "corrected", "more answers are corrected", "hallucinated answers"),
    ):
        claim = f"at α = {alpha} {what} than with random heads ({where})"
        difference = own.difference(name(alpha, RANDOM), name(alpha, SYNERGY), rate)
        made.append(_judged(claim, difference, missing, own))
    return made


def _judged(claim: str, difference: Value, missing: str, own: Changed) -> Verdict:
    """No verdict on few images either: many questions are about the same image."""
    if own.images < FEWEST:
        return judged(claim, enough(replace(difference, n=own.images)), "images")
    return judged(claim, replace(difference, expected="↑"), missing)


def _direction(where: str, own: Changed) -> list[Verdict]:
    """Low against high α on synergy heads."""
    low, high = name(LOWEST, SYNERGY), name(HIGHEST, SYNERGY)
    became, corrected = own.difference(high, low, "became"), own.difference(low, high, "corrected")
    more = f"more become hallucinated at α = {LOWEST} than at {HIGHEST} ({where})"
    less = f"more are corrected at α = {HIGHEST} than at {LOWEST} ({where})"
    return [
        _judged(more, became, "correct answers", own),
        _judged(less, corrected, "hallucinated answers", own),
    ]


def _figure(by_kind: Mapping[str, Changed]) -> Figure:
    from heal.plots.series import Panel, panels

    alphas = (*DOWN, *UP)
    drawn = [
        Panel(
            f"{kind}: {heading.removesuffix(' %')}",
            "%",
            [str(alpha) for alpha in alphas],
            {heads: [own.rate(name(alpha, heads), rate).interval for alpha in alphas] for heads in HEADS},
            None,
            "equilibrium α",
        )
        for heading, rate in ((BECAME, "became"), (CORRECTED, "corrected"))
        for kind, own in by_kind.items()
    ]
    return panels(drawn, len(KINDS))


STUDY = Study(
    "causality",
    "answers that become hallucinated at low α and are corrected at high α, with synergy heads and with random ones",
    "Table 4, Fig. 7",
    parts,
    report,
    benchmarks=("pope", "mme", "chair"),
)
