"""Fig. 5b, Tables 3 and 8: captions at several equilibria, and whether they remain fluent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Counts, Number, ratio
from heal.errors import MissingPackageError
from heal.methods import HEAL, Method
from heal.methods.heal import Drift
from heal.studies import paper_models
from heal.studies.answered import CHAIR_S, EQUAL_RECALL, EQUAL_RECALL_NOTE, LENGTH, RECALL, Answered, caption_cells
from heal.studies.parts import Evaluation, Measured, Part
from heal.studies.perplexity import Written, scored
from heal.studies.setup import Setup
from heal.studies.study import Cell, Found, Report, Row, Study, Table, Value, Verdict
from heal.studies.text_quality import (
    DESCRIPTIONS,
    bleu_counts,
    bleu_score,
    fluency_counts,
    fluency_score,
    references,
)
from heal.studies.verdicts import compared, enough, judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7)
MIDDLE = 0.5
SIDES: Mapping[str, Drift] = {"two-sided": "both", "one-sided": "language"}
PLAIN, ANSWERS = "plain", "captions"
BLEU, PERPLEXITY, REPEATED, CUT = "BLEU", "perplexity", "repeated 4-grams %", "cut answers %"
QUALITY: Mapping[str, tuple[str, int]] = {
    BLEU: ("bleu", 1),
    PERPLEXITY: ("perplexity", 3),
    REPEATED: ("repeated", 1),
    CUT: ("cut", 1),
}
"""Headings of the figures of the texts, and their digits."""


def name(alpha: float, side: str) -> str:
    return f"α = {alpha}, {side}"


def at(form: HEAL, alpha: float, drift: Drift) -> HEAL:
    """The same form of HEAL with a number as its equilibrium."""
    return replace(form, alpha=alpha, drift=drift, delta=0.0, profile=None)


def settings(setup: Setup) -> dict[str, Method | None]:
    """The plain model, and HEAL by its equilibrium, two-sided and one-sided."""
    found: dict[str, Method | None] = {PLAIN: None}
    for side, drift in SIDES.items():
        found |= {name(alpha, side): at(setup.heal, alpha, drift) for alpha in ALPHAS}
    return found


def parts(setup: Setup) -> list[Part]:
    return [Evaluation(ANSWERS, setup.tasks("chair"), settings(setup), setup.settings)]


def follow_up(found: Found) -> list[Part]:
    """The perplexity of all answers under the plain model."""
    setup = found.setup
    made: list[Part] = []
    for distribution in setup.distributions:
        answered = Answered.of(found, ANSWERS, "chair", distribution)
        texts = {
            method: {id: Written(r.text or "", r.finish == "stop") for id, r in answered.records(method).items()}
            for method in settings(setup)
        }
        part = f"perplexity {distribution}"
        made.append(scored(part, setup.captions(distribution), texts, setup.batch_size, setup.caption_tokens))
    return made


# ── figures of texts ──────────────────────────────────────────────────────────────────────────────────────


def quality_score(totals: Mapping[str, Number]) -> dict[str, Number]:
    """Perplexity, repeated n-grams and cut answers, and BLEU if it was counted."""
    mean = np.asarray(ratio(totals["nll"], totals["tokens"]))
    found: dict[str, Number] = {"perplexity": np.exp(mean), **fluency_score(totals)}
    return found | (bleu_score(totals) if "length" in totals else {})


@dataclass(frozen=True)
class Texts:
    """The counts of the texts of each method by image."""

    counts: Mapping[str, Mapping[str, Counts]]
    note: str = ""
    """Why BLEU is missing."""

    @classmethod
    def of(cls, answered: Answered, methods: Sequence[str], scores: Sequence[Measured], known: Any) -> Texts:
        """`known`: the reference texts by sample, or why there are none."""
        note = known if isinstance(known, str) else ""
        own = {record.id: record.facts for record in scores}
        found: dict[str, dict[str, Counts]] = {}
        for method in methods:
            found[method] = {}
            for id, record in answered.records(method).items():
                if method not in own.get(id, {}):
                    continue  # it could not be scored
                nll, tokens = own[id][method]
                counts = {"nll": nll, "tokens": tokens}
                counts |= fluency_counts(record.text or "", record.finish == "length")
                if not note:
                    counts |= bleu_counts(record.text or "", known[id])
                found[method][id] = counts
        return cls(found, note)

    def figures(self, method: str, seed: int) -> dict[str, Interval]:
        return bootstrap.intervals(quality_score, self.counts[method], seed)

    def differences(self, first: str, second: str, seed: int) -> dict[str, Interval]:
        one, other = self.counts[first], self.counts[second]
        both = [id for id in one if id in other]
        return bootstrap.differences(quality_score, {i: one[i] for i in both}, {i: other[i] for i in both}, seed)


def texts_of(found: Found, answered: Answered, distribution: str) -> Texts:
    scores = list(found.records(f"perplexity {distribution}"))
    known = references(found.setup, distribution)
    methods = list(settings(found.setup))
    try:
        return Texts.of(answered, methods, scores, known)
    except MissingPackageError as error:
        return Texts.of(answered, methods, scores, f"no BLEU: {error}")


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────


def report(found: Found) -> Report:
    setup = found.setup
    rows: list[Row] = []
    changes: list[Row] = []
    verdicts: list[Verdict] = []
    notes: list[str] = []
    figures = {}
    for distribution in setup.distributions:
        answered = Answered.of(found, ANSWERS, "chair", distribution)
        texts = texts_of(found, answered, distribution)
        own = {method: _cells(answered, texts, method, setup.seed) for method in settings(setup)}
        rows += [Row(_labels(distribution, method), cells) for method, cells in own.items()]
        changes += [
            Row(_labels(distribution, method), _changes(answered, texts, method, setup.seed))
            for method in settings(setup)
            if method != PLAIN
        ]
        verdicts += _verdicts(distribution, answered, texts, setup.seed)
        notes += [texts.note] if texts.note else []
        figures[distribution] = lambda own=own: _figure(own)
    tables = (
        Table("alpha", rows, "Captions by equilibrium α"),
        Table("differences", changes, "Differences to the plain model"),
    )
    return Report(tables, verdicts, figures, (*dict.fromkeys(notes), *_notes(setup)))


def _notes(setup: Setup) -> tuple[str, ...]:
    where = f"{DESCRIPTIONS} descriptions of each scene" if setup.data is None else "the COCO captions of each image"
    return (
        "two-sided: as in the paper. one-sided: heads that are more visual than α are left alone.",
        EQUAL_RECALL_NOTE,
        f"BLEU: corpus BLEU-4 by sacrebleu's tokenisation, without smoothing, against {where}.",
        "Perplexity: of the answers under the plain model, end token included. Greedy answers of the plain model are "
        "those it finds likely, so that every other method has a higher one. Cut: ended by max_new_tokens.",
        paper_models.NOTE,
    )


def _labels(distribution: str, method: str) -> dict[str, str]:
    alpha, _, side = method.removeprefix("α = ").partition(", ")
    return {"distribution": distribution, "α": alpha, "calibration": side or "–"}


def _cells(answered: Answered, texts: Texts, method: str, seed: int) -> dict[str, Cell]:
    cells = caption_cells(answered, method)
    alpha = method.removeprefix("α = ").removesuffix(", two-sided")
    if alpha in map(str, ALPHAS):
        chair = answered.figure(method, "chair_s")
        cells[CHAIR_S] = Value.of(chair, paper=paper_models.both("alpha", "chair_s", alpha), digits=1)
    figures = texts.figures(method, seed)
    return cells | {
        heading: Value.of(figures[figure], digits=digits)
        for heading, (figure, digits) in QUALITY.items()
        if figure in figures
    }


def _changes(answered: Answered, texts: Texts, method: str, seed: int) -> dict[str, Cell]:
    captions = answered.row(method).differences or {}
    words = texts.differences(PLAIN, method, seed)
    found: dict[str, Cell] = {CHAIR_S: Value.of(captions["chair_s"], digits=1)}
    found |= {RECALL: Value.of(captions["recall"], digits=1), LENGTH: Value.of(captions["len"], digits=1)}
    return found | {
        heading: Value.of(words[figure], digits=digits)
        for heading, (figure, digits) in QUALITY.items()
        if figure in words
    }


def _verdicts(distribution: str, answered: Answered, texts: Texts, seed: int) -> list[Verdict]:
    """The paper: CHAIR_s is lowest in the middle of the range, and below the plain model there."""
    middle, low, high = (name(alpha, "two-sided") for alpha in (MIDDLE, ALPHAS[0], ALPHAS[-1]))

    def verdict(
        claim: str, found: Interval, methods: tuple[str, str], expected: str, paper: str | None = None
    ) -> Verdict:
        return compared(f"{claim} ({distribution})", found, answered, methods, expected=expected, paper=paper)

    found = []
    for side in SIDES:
        method = name(MIDDLE, side)
        paper = paper_models.against_plain("chair_s", str(MIDDLE)) if side == "two-sided" else None
        changed = (answered.row(method).differences or {})["chair_s"]
        found.append(verdict(f"CHAIR_s below plain at {method}", changed, (PLAIN, method), "↓", paper))
        gain = answered.row(method).equal_recall
        if gain is not None:
            claim = f"CHAIR_i at equal recall below plain at {method}"
            found.append(verdict(claim, gain.mean, (PLAIN, method), "↓"))
        found += _of_texts(distribution, answered, texts.differences(PLAIN, method, seed), method)
    for end in (low, high):
        alpha = end.removeprefix("α = ").removesuffix(", two-sided")
        found.append(
            verdict(
                f"CHAIR_s at α = {alpha} above that at α = {MIDDLE}, two-sided",
                answered.differences(middle, end)["chair_s"],
                (middle, end),
                "↑",
                paper_models.difference("alpha", "chair_s", str(MIDDLE), alpha),
            )
        )
    return found


def _of_texts(distribution: str, answered: Answered, words: Mapping[str, Interval], method: str) -> list[Verdict]:
    """Figures that do not depend on hallucinations."""
    found = []
    for heading, (figure, digits) in QUALITY.items():
        if figure in words and heading in (BLEU, PERPLEXITY):
            claim = f"difference of {heading} to plain at {method} ({distribution})"
            value = enough(Value.of(words[figure], n=answered.images, digits=digits))
            found.append(judged(claim, value, "images"))
    return found


def _figure(own: Mapping[str, Mapping[str, Cell]]) -> Figure:
    from heal.plots.series import Panel, panels

    drawn = []
    for heading, unit in PANELS.items():
        if not any(heading in cells for cells in own.values()):
            continue
        lines = {side: [_interval(own[name(alpha, side)].get(heading)) for alpha in ALPHAS] for side in SIDES}
        base = Interval(0.0, 0.0, 0.0) if heading == EQUAL_RECALL else _interval(own[PLAIN].get(heading))
        drawn.append(Panel(heading, unit, [str(alpha) for alpha in ALPHAS], lines, base, "equilibrium α"))
    return panels(drawn, 3)


PANELS = {
    CHAIR_S: "%",
    EQUAL_RECALL: "points",
    RECALL: "%",
    LENGTH: "words",
    BLEU: "%",
    PERPLEXITY: "",
}


def _interval(cell: Cell) -> Interval:
    return cell.interval if isinstance(cell, Value) else Interval(*[float("nan")] * 3)


STUDY = Study(
    "alpha",
    "captions at α = 0.3 … 0.7: CHAIR, recall, BLEU, perplexity under the plain model, repeated n-grams, cut answers",
    "Fig. 5b, Tables 3 and 8",
    parts,
    report,
    follow_up,
)
