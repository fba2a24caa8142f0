"""How far two settings of HEAL give the heads of the same answers the same types, and the mix that each measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from heal.analysis.taxonomy import HeadType
from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Number, ratio
from heal.studies.statistics import Compared, Labelled, compare
from heal.studies.traces import TracedAnswer

Types = UInt8[np.ndarray, "step layer head"]
KINDS = tuple(int(kind) for kind in HeadType if kind != HeadType.UNKNOWN)
UNKNOWN = int(HeadType.UNKNOWN)
NOTHING = Interval(float("nan"), float("nan"), float("nan"))

ALPHA, VISUAL, LANGUAGE = "α_vis", "I_vis / I_total", "I_lang / I_total"
MIX = (ALPHA, VISUAL, LANGUAGE)


@dataclass(frozen=True)
class NameMix:
    """The mix of the synergy heads at the first token of an object name."""

    correct: bool
    step: int
    values: tuple[float, ...]
    """In the order of MIX. NaN without synergy heads."""


@dataclass(frozen=True, eq=False)
class Typed:
    """The head types of one answer under one setting. The last step has no types, and is left out."""

    unit: str
    token_ids: tuple[int, ...]
    types: Types
    names: tuple[NameMix, ...]


def typed(answer: TracedAnswer, types: Types | None = None) -> Typed:
    """An answer with its own types, or with others that were found from its scores."""
    if types is not None:
        answer = TracedAnswer(answer.id, answer.facts, {**answer.arrays, "types": types})
    names = [n for n in answer.names if n.step < answer.steps - 1]
    return Typed(
        answer.unit,
        tuple(answer.facts["token_ids"]),
        answer.types[:-1],
        tuple(NameMix(n.correct, n.step, _mix(answer, n.step)) for n in names),
    )


def _mix(answer: TracedAnswer, step: int) -> tuple[float, ...]:
    mixed = answer.mixed[step]
    if not mixed.any():
        return (float("nan"),) * len(MIX)
    visual, language, total = (array[step][mixed] for array in (answer.visual, answer.language, answer.total))
    whole = float(total.sum()) or np.nan
    return float(answer.alpha_vis[step][mixed].mean()), float(visual.sum()) / whole, float(language.sum()) / whole


# ── agreement ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Agreement:
    """Over all heads at all tokens. Percentages, except κ."""

    same: Interval
    """Heads with the same type."""
    kappa: Interval
    """Cohen's κ: agreement beyond that of two settings with the same numbers of types but independent places. NaN
    if one type is all there is."""
    redundant: Interval
    """Heads that are causally redundant in both, or in neither."""
    redundant_kappa: Interval
    answers: int
    different: int
    """Answers that were left out because their tokens differ."""


def agreement(first: Mapping[str, Typed], second: Mapping[str, Typed], seed: int = 0) -> Agreement:
    """Of the answers that both have, with bootstrap intervals over images."""
    both = [id for id in first if id in second]
    equal = [id for id in both if first[id].token_ids == second[id].token_ids]
    counts: dict[str, dict[str, float]] = {}
    for id in equal:
        own, unit = _pairs(first[id].types, second[id].types), first[id].unit
        counts[unit] = {key: own[key] + counts.get(unit, {}).get(key, 0.0) for key in own}
    found = bootstrap.intervals(_score, counts, seed) if counts else dict.fromkeys(FIGURES, NOTHING)
    return Agreement(**found, answers=len(equal), different=len(both) - len(equal))


FIGURES = ("same", "kappa", "redundant", "redundant_kappa")


def _pairs(first: Types, second: Types) -> dict[str, float]:
    """How many heads have each pair of types. Heads that are unknown in either are left out."""
    return {f"{a}/{b}": float(((first == a) & (second == b)).sum()) for a in KINDS for b in KINDS}


def _score(totals: Mapping[str, Number]) -> dict[str, Number]:
    table = np.array([[np.asarray(totals[f"{a}/{b}"], float) for b in KINDS] for a in KINDS])
    whole = table.sum((0, 1))
    split = np.array([[table[0, 0], table[0, 1:].sum(0)], [table[1:, 0].sum(0), table[1:, 1:].sum((0, 1))]])
    return {
        "same": ratio(np.einsum("ii...", table), whole, 100),
        "kappa": _kappa(table, whole),
        "redundant": ratio(split[0, 0] + split[1, 1], whole, 100),
        "redundant_kappa": _kappa(split, whole),
    }


def _kappa(table: np.ndarray, whole: np.ndarray) -> Number:
    """Cohen's κ of a table of pairs [first, second, …]."""
    chance = (table.sum(1) * table.sum(0)).sum(0)
    return ratio(np.einsum("ii...", table) * whole - chance, whole * whole - chance)


def share(answers: Iterable[Typed], kind: HeadType, seed: int = 0) -> Interval:
    """Heads of this type among all known ones, in percent, with an interval over images."""
    counts: dict[str, dict[str, float]] = {}
    for answer in answers:
        had = counts.get(answer.unit, {"of": 0.0, "all": 0.0})
        of, known = (float(found.sum()) for found in (answer.types == int(kind), answer.types != UNKNOWN))
        counts[answer.unit] = {"of": had["of"] + of, "all": had["all"] + known}
    return bootstrap.intervals(_share, counts, seed)["share"] if counts else NOTHING


def _share(totals: Mapping[str, Number]) -> dict[str, Number]:
    return {"share": ratio(totals["of"], totals["all"], 100)}


# ── drift ─────────────────────────────────────────────────────────────────────────────────────────────────


def drift(answers: Sequence[Typed], seed: int = 0) -> dict[str, Compared]:
    """Each part of the mix of synergy heads at correct and at hallucinated object names."""
    names = [(answer.unit, name) for answer in answers for name in answer.names]
    units, correct = [unit for unit, _ in names], [name.correct for _, name in names]
    steps = [name.step for _, name in names]
    return {
        figure: compare(Labelled.of([name.values[at] for _, name in names], correct, units, steps), seed)
        for at, figure in enumerate(MIX)
    }
