"""Fig. 2: maps of head types for chosen tokens, numbers along the answer, and transitions by kind of token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, UInt8

from heal.analysis.taxonomy import HeadType
from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Number, ratio
from heal.studies.setup import Setup
from heal.studies.statistics import FEWEST
from heal.studies.study import Draw, Found, Part, Report, Row, Study, Table, Value, Verdict
from heal.studies.token_kinds import TokenKind
from heal.studies.traces import TracedAnswer, answers, plain_traces
from heal.studies.verdicts import judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (TokenKind.OBJECT, TokenKind.CONTENT, TokenKind.FUNCTION)
TYPES = tuple(HeadType)[:5]
SHOWN = 300
"""Answers whose heads may be in the scatter plot, and from which tokens are chosen for maps."""
POINTS = 1500
"""Number of heads in the scatter plot."""

Counts = dict[str, float]


def parts(setup: Setup) -> list[Part]:
    return [plain_traces(setup, distribution) for distribution in setup.distributions]


# ── counts by image ───────────────────────────────────────────────────────────────────────────────────────


def image_counts(answer: TracedAnswer) -> Counts:
    """Transitions by kind of token, and numbers of heads by kind of token, for one image.

    A transition at a token is from the type found at the previous step to the one found at this step.
    """
    found = dict.fromkeys(_keys(), 0.0)
    for step in range(answer.steps - 1):
        kind = TokenKind(int(answer.kinds[step]))
        if kind not in KINDS:
            continue
        found[_tokens(kind)] += 1
        for head_type in TYPES:
            found[_number(kind, head_type)] += float((answer.types[step] == int(head_type)).sum())
        if step:
            pairs = transitions(answer.types[step - 1], answer.types[step])
            for (before, after), count in np.ndenumerate(pairs):
                found[_move(kind, TYPES[before], TYPES[after])] += float(count)
    return found


def transitions(before: UInt8[np.ndarray, "layer head"], after: UInt8[np.ndarray, "layer head"]) -> np.ndarray:
    """How many heads go from each type to each, [before, after]."""
    known = (before < len(TYPES)) & (after < len(TYPES))
    pairs = np.zeros((len(TYPES), len(TYPES)))
    np.add.at(pairs, (before[known], after[known]), 1)
    return pairs


def _tokens(kind: TokenKind) -> str:
    return f"tokens {int(kind)}"


def _number(kind: TokenKind, head_type: HeadType) -> str:
    return f"number {int(kind)} {int(head_type)}"


def _move(kind: TokenKind, before: HeadType, after: HeadType) -> str:
    return f"move {int(kind)} {int(before)} {int(after)}"


def _keys() -> list[str]:
    found = [_tokens(kind) for kind in KINDS] + [_number(kind, t) for kind in KINDS for t in TYPES]
    return found + [_move(kind, before, after) for kind in KINDS for before in TYPES for after in TYPES]


def figures(totals: Mapping[str, Number]) -> dict[str, Number]:
    """Shares of transitions in percent, mean numbers of heads, and the differences that the paper's text names."""
    found: dict[str, Number] = {}
    for kind in KINDS:
        for before in TYPES:
            own = {after: totals[_move(kind, before, after)] for after in TYPES}
            every = sum(np.asarray(value, float) for value in own.values())
            found |= {_move(kind, before, after): ratio(value, every, 100) for after, value in own.items()}
        found |= {_number(kind, t): ratio(totals[_number(kind, t)], totals[_tokens(kind)]) for t in TYPES}
    return found | {claim.name: found[claim.more] - found[claim.less] for claim in CLAIMS}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper's text: one share of transitions is larger than another."""

    name: str
    more: str
    less: str
    kind: TokenKind
    before: HeadType
    """The number of heads of this type at tokens of this kind is what the share is of."""


LANGUAGE, SYNERGY, VISUAL = HeadType.LANGUAGE, HeadType.SYNERGY, HeadType.VISUAL
OBJECT, FUNCTION = TokenKind.OBJECT, TokenKind.FUNCTION
CLAIMS = (
    Claim(
        "function words turn more synergy heads toward language than object words",
        _move(FUNCTION, SYNERGY, LANGUAGE),
        _move(OBJECT, SYNERGY, LANGUAGE),
        FUNCTION,
        SYNERGY,
    ),
    Claim(
        "object words turn more language heads toward synergy than function words",
        _move(OBJECT, LANGUAGE, SYNERGY),
        _move(FUNCTION, LANGUAGE, SYNERGY),
        OBJECT,
        LANGUAGE,
    ),
    Claim(
        "at object words fewer synergy heads turn visual than language",
        _move(OBJECT, SYNERGY, LANGUAGE),
        _move(OBJECT, SYNERGY, VISUAL),
        OBJECT,
        SYNERGY,
    ),
)


# ── along the answer ──────────────────────────────────────────────────────────────────────────────────────


def along(some: Sequence[Mapping[HeadType, np.ndarray]]) -> dict[HeadType, list[Interval]]:
    """The mean number of heads of each type at every step that at least half of the answers have."""
    lengths = sorted(len(one[SYNERGY]) for one in some)
    steps = lengths[len(lengths) // 2] if lengths else 0
    found: dict[HeadType, list[Interval]] = {kind: [] for kind in TYPES}
    for step in range(steps):
        long_enough = [one for one in some if step < len(one[SYNERGY])]
        for kind in TYPES:
            found[kind].append(_mean(np.array([one[kind][step] for one in long_enough], float)))
    return found


def numbers(answer: TracedAnswer) -> dict[HeadType, np.ndarray]:
    """The number of heads of each type at every step that has types."""
    return {kind: (answer.types[:-1] == int(kind)).sum((1, 2)) for kind in TYPES}


def _mean(found: Float[np.ndarray, " answer"]) -> Interval:
    """The mean with a normal interval over answers."""
    spread = 1.96 * found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else float("nan")
    return Interval(float(found.mean()), float(found.mean() - spread), float(found.mean() + spread))


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class ChosenToken:
    """A token whose heads are drawn as a map."""

    label: str
    types: UInt8[np.ndarray, "layer head"]


@dataclass(frozen=True, eq=False)
class Cloud:
    """Heads at object words: their information, and their types."""

    points: Float32[np.ndarray, "head three"]
    """Visual, language and synergy information."""
    types: UInt8[np.ndarray, " head"]


def chosen(some: Sequence[TracedAnswer]) -> list[ChosenToken]:
    """A function word, a content word, a correct and a hallucinated name of one answer: of the first that has all,
    or else of the one that has most of them."""
    best: list[ChosenToken] = []
    for answer in some:
        own = _chosen_of(answer)
        if len(own) > len(best):
            best = own
        if len(best) == 4:
            break
    return best


def _chosen_of(answer: TracedAnswer) -> list[ChosenToken]:
    last = answer.steps - 1
    correct = [name.step for name in answer.names if name.correct and name.step < last]
    wrong = [name.step for name in answer.names if not name.correct and name.step < last]
    places = {
        "function word": [s for s in answer.of_kind(TokenKind.FUNCTION).tolist() if 0 < s < last],
        "content word": [s for s in answer.of_kind(TokenKind.CONTENT).tolist() if 0 < s < last],
        "correct object": correct,
        "hallucinated object": wrong,
    }
    return [
        ChosenToken(f"“{answer.tokens[steps[0]].strip()}”\n{what}, step {steps[0]}", answer.types[steps[0]])
        for what, steps in places.items()
        if steps
    ]


def cloud(some: Sequence[TracedAnswer], seed: int) -> Cloud:
    """A random choice of heads at the first tokens of object names."""
    points, types = [], []
    for answer in some:
        for step in (name.step for name in answer.names if name.step < answer.steps - 1):
            visual, language = answer.visual[step], answer.language[step]
            points.append(np.stack([visual, language, answer.total[step] - visual - language], -1).reshape(-1, 3))
            types.append(answer.types[step].ravel())
    every = np.concatenate(points) if points else np.zeros((0, 3), np.float32)
    kinds = np.concatenate(types) if types else np.zeros(0, np.uint8)
    taken = np.random.default_rng(seed).permutation(len(every))[:POINTS]
    return Cloud(every[taken].astype(np.float32), kinds[taken])


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Distribution:
    """Everything that is reported on one distribution."""

    counts: Counts
    intervals: Mapping[str, Interval]
    along: Mapping[HeadType, Sequence[Interval]]
    chosen: Sequence[ChosenToken]
    cloud: Cloud


def summarised(some: Iterable[TracedAnswer], seed: int) -> Distribution:
    """One pass over the answers; only the first ones are kept for the figures."""
    by_image: dict[str, Counts] = {}
    lines: list[Mapping[HeadType, np.ndarray]] = []
    rest = iter(some)
    first = list(islice(rest, SHOWN))
    for group in (first, rest):
        for answer in group:
            by_image[answer.unit] = image_counts(answer)
            lines.append(numbers(answer))
    counts = {key: sum(own[key] for own in by_image.values()) for key in _keys()}
    found = bootstrap.intervals(figures, by_image, seed)
    return Distribution(counts, found, along(lines), chosen(first), cloud(first, seed))


def report(found: Found) -> Report:
    every = {
        d: summarised(answers(found.records(f"traces {d}")), found.setup.seed) for d in found.setup.distributions
    }
    moves = [row for name, one in every.items() for row in _move_rows(name, one)]
    kinds = [row for name, one in every.items() for row in _number_rows(name, one)]
    first = next(iter(every.values()))
    drawn: dict[str, Draw] = {
        "maps": lambda: _draw("maps", first.chosen),
        "along": lambda: _draw("along", {name: one.along for name, one in every.items()}),
        "scatter": lambda: _draw("scatter", first.cloud),
        "transitions": lambda: _draw("transitions", {name: _matrices(one) for name, one in every.items()}),
    }
    return Report(
        (
            Table("transitions", moves, "Percentage of the heads of a type that have each type one token later"),
            Table("numbers", kinds, "Mean number of heads by kind of token"),
        ),
        [verdict for name, one in every.items() for verdict in _verdicts(name, one)],
        drawn,
        NOTES,
    )


NOTES = (
    "Types are found at every step. A transition at a token is from the type at the token before to the type at this "
    "one, over all heads and all tokens of the kind; every token of an object's name counts.",
    "Object words are found as in CHAIR. Function words are the closed word classes of English; all others, with "
    "numbers, are content words. Punctuation and special tokens are left out.",
    f"The scatter plot has at most {POINTS} heads, drawn at random from the first tokens of object names.",
)


def _value(one: Distribution, key: str, digits: int) -> Value:
    interval = one.intervals.get(key, Interval(*[float("nan")] * 3))
    return Value.of(interval, digits=digits)


def _move_rows(name: str, one: Distribution) -> list[Row]:
    rows = []
    for kind in KINDS:
        for before in TYPES:
            heads = sum(one.counts[_move(kind, before, after)] for after in TYPES)
            if heads:
                labels = {"distribution": name, "kind of token": kind.label, "type before": before.label}
                own = {f"to {after.label}": _value(one, _move(kind, before, after), 1) for after in TYPES}
                rows.append(Row(labels, {**own, "heads": int(heads)}))
    return rows


def _number_rows(name: str, one: Distribution) -> list[Row]:
    rows = []
    for kind in KINDS:
        own = {t.label: _value(one, _number(kind, t), 1) for t in TYPES}
        labels = {"distribution": name, "kind of token": kind.label}
        rows.append(Row(labels, {**own, "tokens": int(one.counts[_tokens(kind)])}))
    return rows


def _verdicts(name: str, one: Distribution) -> list[Verdict]:
    found = []
    for claim in CLAIMS:
        heads = int(min(one.counts[_tokens(kind)] for kind in (OBJECT, claim.kind)))
        value = _value(one, claim.name, 1)
        value = Value(value.value, value.low, value.high, expected="↑", n=heads, digits=1)
        if heads < FEWEST:
            value = Value(value.value, expected="↑", n=heads, digits=1)
        found.append(judged(f"{claim.name} ({name}, difference in % points)", value, "tokens"))
    return found


def _matrices(one: Distribution) -> dict[TokenKind, np.ndarray]:
    """Percentages [before, after] by kind of token; NaN where too few heads have the type before."""
    found = {}
    for kind in KINDS:
        counts = np.array([[one.counts[_move(kind, before, after)] for after in TYPES] for before in TYPES])
        heads = counts.sum(1, keepdims=True)
        unknown = np.full_like(counts, np.nan)
        found[kind] = np.divide(100 * counts, heads, out=unknown, where=heads >= FEWEST)
    return found


def _draw(what: str, data: object) -> Figure:
    from heal.plots import head_maps

    draw = {
        "maps": head_maps.maps,
        "along": head_maps.along,
        "scatter": head_maps.scatter,
        "transitions": head_maps.transitions,
    }
    return draw[what](data)  # type: ignore[operator]


STUDY = Study(
    "head-maps",
    "maps of head types for chosen tokens, their numbers along the answer, and transitions by kind of token",
    "Fig. 2",
    parts,
    report,
)
