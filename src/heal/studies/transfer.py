"""α chosen on one task and used on another, and the α of the paper's models: is it as good as the task's own?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heal.bench.score.bootstrap import Interval
from heal.methods import Method
from heal.studies.alpha import at
from heal.studies.answered import CAPTIONS as HEADINGS
from heal.studies.answered import CHAIR_I, EQUAL_RECALL, RECALL, Answered
from heal.studies.interval import POPE_F1, chosen
from heal.studies.paper import printed
from heal.studies.paper_models import MODELS, NAMES
from heal.studies.parts import Evaluation, Part
from heal.studies.setup import Setup
from heal.studies.statistics import FEWEST
from heal.studies.study import Cell, Found, Outcome, Report, Row, Study, Table, Value, Verdict
from heal.studies.transfer_choice import (
    BENCHMARKS,
    CAPTIONS,
    MOST_QUESTIONS,
    Choice,
    Place,
    choices,
    measured,
    on_halves,
    part_name,
    places,
    using,
)
from heal.studies.verdicts import compared, enough

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN, PAPERS, ANSWERS = "plain", "answers, α of the paper's models", "answers"
TO_PLAIN, TO_OWN = "difference to plain", "difference to its own α"
HEADLINES = {CAPTIONS: EQUAL_RECALL, "pope": POPE_F1}
"""The figure that decides, for each benchmark."""


@dataclass(frozen=True)
class Source:
    """Where an α comes from."""

    label: str
    alpha: float
    place: Place | None = None
    """The task that it was chosen on. None: models of the paper."""

    @property
    def method(self) -> str:
        return method_name(self.alpha)

    @property
    def where(self) -> str:
        return f"{self.label} ({self.alpha:g})"


def method_name(alpha: float) -> str:
    return f"α = {alpha:g}"


def of_the_paper() -> list[Source]:
    """The visual share that the paper prints for correct tokens, and the α with the lowest CHAIR_s of each model."""
    found = [Source("the paper's visual share at correct tokens", float(printed("ratios", "correct", "visual")))]
    for model in MODELS:
        chair = {float(a): value for a, value in printed("alpha", model, "chair_s").items() if value is not None}
        found.append(Source(f"the paper's lowest CHAIR_s, {NAMES[model]}", min(chair, key=chair.__getitem__)))
    return found


def sources(found: Mapping[Place, Choice]) -> list[Source]:
    return [*(Source(str(place), c.alpha, place) for place, c in found.items()), *of_the_paper()]


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────


def _answers(setup: Setup, name: str, alphas: Sequence[float]) -> Evaluation:
    form = chosen(setup)
    methods: dict[str, Method | None] = {PLAIN: None}
    methods |= {method_name(alpha): at(form, alpha, form.drift) for alpha in sorted(set(alphas))}
    return Evaluation(name, using(setup), methods, setup.settings)


def parts(setup: Setup) -> list[Part]:
    """The second part does not depend on the first: `follow_up` reuses its answers, and a plan includes it."""
    return [
        *(measured(setup, place) for place in places(setup)),
        _answers(setup, PAPERS, [source.alpha for source in of_the_paper()]),
    ]


def chosen_alphas(found: Found) -> dict[Place, Choice]:
    return choices(found.setup, {place: found.records(part_name(place)) for place in places(found.setup)})


def follow_up(found: Found) -> list[Part]:
    """The answers with every α."""
    return [_answers(found.setup, ANSWERS, [source.alpha for source in sources(chosen_alphas(found))])]


# ── one task ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Used:
    """The answers to one task with every α."""

    place: Place
    answered: Answered
    own: Source | None
    """The α that was chosen on this task."""
    known: dict[tuple[str, str], Interval] = field(default_factory=dict, compare=False, repr=False)

    def difference(self, first: str, second: str) -> Interval:
        """Of the figure that decides, second − first, paired. No interval if there are too few errors."""
        if (first, second) not in self.known:
            self.known[first, second] = self._difference(first, second)
        return self.known[first, second]

    def _difference(self, first: str, second: str) -> Interval:
        if self.place.benchmark == CAPTIONS:
            gain = self.answered.gain(first, second)
            found = Interval(*[float("nan")] * 3) if gain is None else gain.mean
        else:
            found = self.answered.differences(first, second)["f1"]
        _, n = self.answered.behind(first, second)
        return enough(Value.of(found, n=n)).interval

    def cells(self, source: Source | None) -> dict[str, Cell]:
        """The figures of an α, or of the plain model."""
        name = PLAIN if source is None else source.method
        found: dict[str, Cell] = {}
        if self.place.benchmark == CAPTIONS:
            figures = {heading: HEADINGS[heading] for heading in (CHAIR_I, RECALL)}
        else:
            figures = {POPE_F1: ("f1", 1)}
        for heading, (figure, digits) in figures.items():
            found[heading] = Value.of(self.answered.figure(name, figure), digits=digits)
        if source is None:
            return found
        found[TO_PLAIN] = Value.of(self.difference(PLAIN, name))
        if self.own is not None:
            same = "same α" if source != self.own else "–"
            found[TO_OWN] = (
                same
                if self.own.alpha == source.alpha
                else Value.of(self.difference(self.own.method, name), expected="=")
            )
        return found

    def judged(self, claim: str, first: str, second: str) -> Verdict:
        """Whether the two are equal, or too few images or errors to tell."""
        return compared(claim, self.difference(first, second), self.answered, (first, second), expected="=")

    @property
    def figure(self) -> str:
        return HEADLINES[self.place.benchmark]

    @property
    def short(self) -> str:
        return self.figure.removeprefix("POPE ")


def used(found: Found, own: Mapping[Place, Choice]) -> list[Used]:
    return [
        Used(
            place,
            Answered.of(found, ANSWERS, place.benchmark, place.distribution),
            Source(str(place), own[place].alpha, place) if place in own else None,
        )
        for place in places(found.setup)
    ]


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


def report(found: Found) -> Report:
    own = chosen_alphas(found)
    every, on = sources(own), used(found, own)
    cells = {(u.place, s.label): u.cells(s) for u in on for s in every}
    rows = [row for u in on for row in _rows(u, every, cells)]
    matrix = [
        Row({"chosen on": s.label, "α": f"{s.alpha:g}"}, _across(on, [cells[u.place, s.label] for u in on]))
        for s in every
    ]
    verdicts = [_choice_verdict(own, places(found.setup))]
    for u in on:
        verdicts += [_against_plain(u)] if u.own is not None else []
        verdicts += [_verdict(u, s, own) for s in every if s.place != u.place]
    tables = (
        Table("transfer", rows, "Every α on every task"),
        Table("matrix", matrix, "Differences by the task that α was chosen on and the one that it is used on"),
        Table("choice", [_choice_row(place, own.get(place)) for place in places(found.setup)], "The α of each task"),
    )
    return Report(tables, verdicts, {"transfer": lambda: _figure(every, on, cells)}, _notes(found.setup))


Cells = Mapping[tuple[Place, str], Mapping[str, Cell]]


def _across(on: Sequence[Used], cells: Sequence[Mapping[str, Cell]]) -> dict[str, Cell]:
    return {
        f"{u.place}, {u.figure}, {heading}": own.get(heading)
        for u, own in zip(on, cells, strict=True)
        for heading in (TO_PLAIN, TO_OWN)
    }


def _rows(u: Used, every: Sequence[Source], cells: Cells) -> list[Row]:
    plain = Row({"used on": str(u.place), "chosen on": PLAIN, "α": "–"}, u.cells(None))
    return [
        plain,
        *(
            Row({"used on": str(u.place), "chosen on": s.label, "α": f"{s.alpha:g}"}, cells[u.place, s.label])
            for s in every
        ),
    ]


def _choice_row(place: Place, found: Choice | None) -> Row:
    if found is None:
        return Row({"task": str(place)}, {"visual share": None, "α": "–", "correct tokens": 0})
    share = Value.of(found.share, digits=3, n=found.tokens)
    return Row({"task": str(place)}, {"visual share": share, "α": f"{found.alpha:g}", "correct tokens": found.tokens})


def _choice_verdict(own: Mapping[Place, Choice], every: Sequence[Place]) -> Verdict:
    claim = "visual share of synergy heads at correct tokens"
    few = [place for place in every if place not in own or own[place].too_few]
    if few:
        named = ", ".join(f"{place} ({own[place].tokens if place in own else 0})" for place in few)
        text = f"{claim}: too few correct tokens on {named}; {FEWEST} are needed: measure more images"
        return Verdict(claim, Outcome.TOO_FEW, text)
    shown = ", ".join(f"{Value.of(c.share, digits=3)} on {place}" for place, c in own.items())
    paper = printed("ratios", "correct", "visual")
    return Verdict(claim, Outcome.MEASURED, f"{claim}: {shown}; paper {paper} (LLaVA-1.5-7B)")


def _against_plain(u: Used) -> Verdict:
    """If even the α of the task itself changes nothing, the comparison of several α says little."""
    assert u.own is not None
    claim = f"its own α on {u.place}"
    found = u.judged(claim, PLAIN, u.own.method)
    if found.outcome is Outcome.TOO_FEW:
        return found
    difference = u.difference(PLAIN, u.own.method)
    shown = "" if difference.excludes_zero else "; no effect is seen, so comparing several α says little here"
    text = f"{u.short} on {u.place} with its own α ({u.own.alpha:g}) minus plain: {Value.of(difference)}{shown}"
    return Verdict(claim, Outcome.MEASURED, text)


def _verdict(u: Used, source: Source, own: Mapping[Place, Choice]) -> Verdict:
    claim = f"α of {source.label} on {u.place}"
    few = [(place, tokens) for place, tokens in _tokens(u, source, own) if tokens < FEWEST]
    if u.own is None or few:
        place, tokens = few[0]
        text = f"{claim}: the α of {place} rests on too few correct tokens ({tokens}), so there is no verdict"
        return Verdict(claim, Outcome.TOO_FEW, text)
    if u.own.alpha == source.alpha:
        return Verdict(claim, Outcome.MEASURED, f"{claim}: it is the same α ({source.alpha:g}), so nothing differs")
    value = Value.of(u.difference(u.own.method, source.method))
    found = u.judged(claim, u.own.method, source.method)
    if found.outcome is Outcome.TOO_FEW:
        return found
    text = f"{u.short} on {u.place} with the α of {source.where} instead of its own ({u.own.alpha:g}): {value}"
    return Verdict(claim, found.outcome, f"{text}; {conclusion(value.interval, u.place.benchmark)}")


def _tokens(u: Used, source: Source, own: Mapping[Place, Choice]) -> list[tuple[Place, int]]:
    """The tasks whose α are compared, and the correct tokens behind them."""
    compared = (place for place in (u.place, source.place) if place is not None)
    return [(place, own[place].tokens if place in own else 0) for place in compared]


def conclusion(difference: Interval, benchmark: str) -> str:
    """What an interval of the difference to a task's own α says. A zero inside it is no proof of equality."""
    less_is_better = benchmark == CAPTIONS
    if difference.excludes_zero:
        return "worse than its own" if (difference.value > 0) == less_is_better else "better than its own"
    worst = max(0.0, difference.high if less_is_better else -difference.low)
    return f"no difference is seen, and a loss of up to {worst:.2f} points is not excluded"


def _notes(setup: Setup) -> tuple[str, ...]:
    form = chosen(setup)
    images = (
        "on the first half of the images, and used on the other"
        if on_halves(setup)
        else "on as many images of the validation split, and used on the test split"
    )
    return (
        f"α is chosen {images}. Rule: the mean visual share of the plain model's synergy heads, as in `heal "
        "calibrate`, at the first tokens of correctly named objects in captions, and at the first tokens of correct "
        f"answers to at most {MOST_QUESTIONS} questions of POPE, rounded to two digits.",
        f"Form of HEAL: drift {form.drift}, everything but α as the user gave it.",
        "CHAIR_i at equal recall decides for captions (lower is better), F1 for POPE (higher is better). Differences "
        "are paired by image.",
        "An interval that contains zero means that no difference was seen on these images. It does not show that "
        "there is none: read its width.",
        "The paper finds α on one model of each family and uses it for the others; it prints no comparison. The "
        "ratios that it prints for correct tokens do not add up to 1.",
    )


def _figure(every: Sequence[Source], on: Sequence[Used], cells: Cells) -> Figure:
    from heal.plots.forest import Column, forest

    def interval(cell: Cell) -> Interval:
        return cell.interval if isinstance(cell, Value) else Interval(*[float("nan")] * 3)

    columns = [
        Column(
            f"used on {u.place}",
            f"{u.figure}, difference to plain",
            {"HEAL": [interval(cells[u.place, s.label].get(TO_PLAIN)) for s in every]},
            0.0,
        )
        for u in on
    ]
    return forest([f"{s.label}: {s.alpha:g}" for s in every], columns)


STUDY = Study(
    "transfer",
    "α chosen on captions or POPE, natural or counter, and on the paper's models, used on each of the others",
    "section 4.1, α of each family",
    parts,
    report,
    follow_up,
    benchmarks=BENCHMARKS,
)
