"""Fig. 1: heads by type, their information, and the mix of synergy heads at correct and hallucinated names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import Interval
from heal.studies.objects import ObjectName
from heal.studies.paper import printed
from heal.studies.setup import Setup
from heal.studies.statistics import WIDTH, Compared, Labelled, compare
from heal.studies.study import Cell, Found, Part, Report, Row, Study, Table, Value, Verdict
from heal.studies.traces import TracedAnswer, answers, plain_traces
from heal.studies.verdicts import judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = "α_vis of synergy heads"
VISUAL_PART, LANGUAGE_PART = "I_vis / I_total of synergy heads", "I_lang / I_total of synergy heads"
SHARE_IN_EFFECT = "α_vis of synergy heads of the last refresh"
ALL, FIRST = "all names", "first mentions"


@dataclass(frozen=True)
class Quantity:
    """A value of one token."""

    name: str
    panel: str
    """a, b or c of the paper's figure."""
    expected: str
    """Direction of correct − hallucinated in the paper: it says that only the mix of synergy heads differs."""
    digits: int


QUANTITIES = (
    *(
        Quantity(f"number of {kind.label} heads", "a", "=" * (kind != HeadType.SYNERGY), 1)
        for kind in list(HeadType)[:5]
    ),
    Quantity("I_vis of visual heads", "b", "=", 3),
    Quantity("I_lang of language heads", "b", "=", 3),
    Quantity("I_total of visual heads", "b", "=", 3),
    Quantity("I_total of language heads", "b", "=", 3),
    Quantity(SHARE, "c", "↑", 3),
    Quantity(SHARE_IN_EFFECT, "c", "↑", 3),
    Quantity(VISUAL_PART, "c", "↑", 3),
    Quantity(LANGUAGE_PART, "c", "↓", 3),
)


@dataclass(frozen=True)
class NamedObject:
    """An object name of an answer, with all quantities at its first token."""

    unit: str
    name: ObjectName
    values: tuple[float, ...]
    """In the order of QUANTITIES. NaN where no head has the type."""


def parts(setup: Setup) -> list[Part]:
    return [plain_traces(setup, distribution) for distribution in setup.distributions]


def named_objects(some: Iterable[TracedAnswer], interval: int = 10) -> list[NamedObject]:
    """The names of all answers. One that begins with the last token of a cut answer has no types, and is left out."""
    found = []
    for answer in some:
        earlier = answer.in_effect(interval)
        for name in answer.names:
            if name.step < answer.steps - 1:
                values = _values(answer, name.step, earlier[name.step] == int(HeadType.SYNERGY))
                found.append(NamedObject(answer.unit, name, values))
    return found


def _values(answer: TracedAnswer, step: int, synergy_before: np.ndarray) -> tuple[float, ...]:
    """`synergy_before`: the heads that were synergy at the last refresh."""
    types, visual, language, total = (
        array[step] for array in (answer.types, answer.visual, answer.language, answer.total)
    )
    of = {kind: types == int(kind) for kind in HeadType}
    share, mixed = answer.alpha_vis[step], answer.mixed[step]
    whole = float(total[mixed].sum()) or np.nan
    return (
        *(float(of[kind].sum()) for kind in list(HeadType)[:5]),
        _mean(visual[of[HeadType.VISUAL]]),
        _mean(language[of[HeadType.LANGUAGE]]),
        _mean(total[of[HeadType.VISUAL]]),
        _mean(total[of[HeadType.LANGUAGE]]),
        _mean(share[mixed]),
        _mean(share[synergy_before & ~np.isnan(share)]),
        float(visual[mixed].sum()) / whole,
        float(language[mixed].sum()) / whole,
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def comparisons(names: Sequence[NamedObject], seed: int) -> dict[str, Compared]:
    """Each quantity at correct and at hallucinated names."""
    correct, steps = [n.name.correct for n in names], [n.name.step for n in names]
    units = [n.unit for n in names]
    return {
        quantity.name: compare(Labelled.of([n.values[at] for n in names], correct, units, steps), seed)
        for at, quantity in enumerate(QUANTITIES)
    }


def report(found: Found) -> Report:
    by_place: dict[tuple[str, str], dict[str, Compared]] = {}
    for distribution in found.setup.distributions:
        names = named_objects(answers(found.records(f"traces {distribution}")), found.setup.heal.interval)
        first = [n for n in names if n.name.first]
        by_place[distribution, ALL] = comparisons(names, found.setup.seed)
        by_place[distribution, FIRST] = comparisons(first, found.setup.seed)
    rows = [_row(where, q, compared[q.name]) for where, compared in by_place.items() for q in QUANTITIES]
    verdicts = [v for where, compared in by_place.items() for v in _verdicts(where, compared)]
    return Report(
        (Table("heads", rows, "Heads at correct and hallucinated object names"),),
        verdicts,
        {"heads": lambda: _figure(by_place)},
        NOTES,
    )


NOTES = (
    "Values and types are those of the step that generates the first token of a name; in the row “of the last "
    "refresh”, types are those that a method with its interval would use there. Difference: correct − hallucinated. "
    "AUC: probability that a correct name has the higher value; 0.5 is chance.",
    f"Matched: the same among names within {WIDTH} tokens of the same position of the answer, because both "
    "hallucination and drift may increase along it.",
    "The paper's ratios of visual to language do not add up to 1, so they are not α_vis : α_lang; they are beside "
    "I_vis / I_total and I_lang / I_total. They are for LLaVA-1.5-7B.",
)


def _row(where: tuple[str, str], quantity: Quantity, found: Compared) -> Row:
    paper = _paper(quantity.name)
    difference = None if None in paper else round(paper[0] - paper[1], 4)  # type: ignore[operator]

    def value(interval: Interval, digits: int, paper: float | None = None, expected: str = "") -> Value:
        return Value.of(interval, paper=paper, expected=expected, digits=digits)

    digits, expected = quantity.digits, quantity.expected
    values: dict[str, Cell] = {
        "correct": value(found.mean_correct, digits, paper[0]),
        "hallucinated": value(found.mean_hallucinated, digits, paper[1]),
        "difference": value(found.difference, digits, difference, expected),
        "AUC": value(found.auc, 3),
        "matched difference": value(found.matched_difference, digits, None, expected),
        "matched AUC": value(found.matched_auc, 3),
        "correct names": found.correct,
        "hallucinated names": found.hallucinated,
    }
    return Row({"distribution": where[0], "names": where[1], "quantity": quantity.name}, values)


def _paper(name: str) -> tuple[float | None, float | None]:
    side = {VISUAL_PART: "visual", LANGUAGE_PART: "language"}.get(name)
    if side is None:
        return None, None
    return printed("ratios", "correct", side), printed("ratios", "hallucinated", side)


def _verdicts(where: tuple[str, str], found: dict[str, Compared]) -> list[Verdict]:
    """About the drift in two measures, and, over all names, about what the paper says does not differ."""
    claims = {SHARE: "drift of α_vis", VISUAL_PART: "drift of I_vis / I_total"}
    if where[1] == ALL:
        claims |= {f"number of {k} heads": f"equal number of {k} heads" for k in ("visual", "language")}
        claims |= {f"I_{s} of {k} heads": f"equal information of {k} heads" for s, k in SIDES}
    rows = {q.name: _row(where, q, found[q.name]) for q in QUANTITIES if q.name in claims}
    place = f"({', '.join(where)})"
    verdicts = [_verdict(f"{c} {place}", rows[n], "difference", found[n]) for n, c in claims.items()]
    matched = f"drift of α_vis at similar positions {place}"
    return [verdicts[0], _verdict(matched, rows[SHARE], "matched difference", found[SHARE]), *verdicts[1:]]


SIDES = (("vis", "visual"), ("lang", "language"))


def _verdict(claim: str, row: Row, column: str, found: Compared) -> Verdict:
    difference = row.values[column]
    assert isinstance(difference, Value)
    fewest = min(found.correct, found.hallucinated)
    which = "hallucinated" if fewest == found.hallucinated else "correct"
    return judged(claim, replace(difference, n=fewest), f"{which} names")


def _figure(found: dict[tuple[str, str], dict[str, Compared]]) -> Figure:
    from heal.plots.heads_by_token import heads_by_token

    return heads_by_token(found)


STUDY = Study(
    "heads-by-token",
    "types of heads, their information, and the mix of synergy heads at correct and hallucinated object names",
    "Fig. 1 a, b, c",
    parts,
    report,
)
