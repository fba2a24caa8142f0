"""Ours: the guard, which leaves out sentences with risky object words, against all other ways to hallucinate less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heal.bench.score.bootstrap import Interval
from heal.studies.answered import EQUAL_RECALL_NOTE, Answered, caption_cells
from heal.studies.guard_parts import (
    BOTH,
    BY_CHANCE,
    BY_LOGPROB,
    CAPTIONS,
    GUARD,
    HEALED,
    LOSS,
    MOST_OTHERS,
    OTHERS,
    PLAIN,
    QUESTIONS,
    RETRY,
    described,
    empty,
    follow_up,
    judging,
    other_methods,
    parts,
    settings,
    thresholds,
)
from heal.studies.sentence_risks import DETECTOR, LOGPROB, RANDOM, THRESHOLDS, Described
from heal.studies.setup import Setup
from heal.studies.study import Cell, Found, Outcome, Report, Row, Study, Table, Value, Verdict
from heal.studies.verdicts import compared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heal.plots.guard import Curve

AT_HIGHEST = "CHAIR_i at the highest equal recall"
SHOWN = ("f1", "accuracy", "yes_ratio", "total")
"""Figures of questions."""


def report(found: Found) -> Report:
    if reason := empty(found):
        return Report((), (Verdict("guard", Outcome.TOO_FEW, f"the guard could not be measured: {reason}"),))
    setup, at = found.setup, thresholds(found)
    rows: list[Row] = []
    curve: list[Row] = []
    asked: list[Row] = []
    verdicts: list[Verdict] = []
    figures = {}
    for distribution in setup.distributions:
        answered = answers(found, CAPTIONS, distribution)
        rows += [Row(_labels(distribution, m), _cells(answered, m)) for m in settings(setup, at)]
        others = answers(found, OTHERS, distribution)
        rows += [Row(_labels(distribution, m), _cells(others, m)) for m in other_methods(setup) if m != PLAIN]
        own = described(found, "judging", distribution)
        curve += _curve(own, distribution)
        asked += _questions(found, distribution)
        verdicts += _verdicts(distribution, answered)
        drawn = _lines(curve, distribution), _points(answered, others, found)
        figures[distribution] = lambda drawn=drawn: _figure(*drawn)
    verdicts += _unchanged(found)
    tables = (
        Table("guard", rows, "Descriptions"),
        Table("curve", curve, "Descriptions of the plain model without their risky sentences, by threshold"),
        Table("questions", asked, "Questions"),
        Table("thresholds", _thresholds(found, at), "Thresholds, and what they cost where they were chosen"),
    )
    return Report(tables, verdicts, figures, _notes(setup))


def answers(found: Found, part: str, distribution: str) -> Answered:
    name = found.setup.task_name("chair", distribution)
    return Answered(found.evaluation(part), name, judging(found.setup, distribution), found.setup.seed)


def _labels(distribution: str, method: str) -> dict[str, str]:
    return {"distribution": distribution, "method": method}


def _cells(answered: Answered, method: str) -> dict[str, Cell]:
    gain = answered.row(method).equal_recall
    images: dict[str, Cell] = {"images": len({sample.unit for sample in answered.samples})}
    cells = images | caption_cells(answered, method)
    return cells | {AT_HIGHEST: None if gain is None else Value.of(gain.highest)}


def _curve(own: Described, distribution: str) -> list[Row]:
    found = []
    for kind in (DETECTOR, LOGPROB, RANDOM):
        for threshold in THRESHOLDS[1::3]:
            figures = own.figures(own.kept(kind, threshold))
            labels = {"distribution": distribution, "risk": kind, "threshold": f"{threshold:g}"}
            cells: dict[str, Cell] = {
                "dropped %": Value(100 * own.share_dropped(kind, threshold), digits=1),
                "recall": Value(figures["recall"], digits=1),
                "CHAIR_i ↓": Value(figures["chair_i"], digits=1),
            }
            found.append(Row(labels, cells))
    return found


def _thresholds(found: Found, at: Mapping[str, float]) -> list[Row]:
    rows = []
    for distribution in found.setup.distributions:
        own = described(found, "choosing", distribution)
        every = {"none": own.plain()} | {kind: own.kept(kind, at[kind]) for kind in at}
        for kind, texts in every.items():
            figures = own.intervals(texts)
            dropped = 0.0 if kind == "none" else 100 * own.share_dropped(kind, at[kind])
            rows.append(
                Row(
                    {"distribution": distribution, "risk": kind},
                    {
                        "threshold": None if kind == "none" else Value(at[kind]),
                        "dropped %": Value(dropped, digits=1),
                        "recall": Value.of(figures["recall"], digits=1),
                        "CHAIR_i ↓": Value.of(figures["chair_i"], digits=1),
                    },
                )
            )
    return rows


def _questions(found: Found, distribution: str) -> list[Row]:
    evaluated, rows = found.evaluation(QUESTIONS), []
    for name in evaluated.samples:
        if name.endswith(f" {distribution}"):
            for method in (PLAIN, GUARD):
                row = evaluated.row(name, method)
                cells: dict[str, Cell] = {h: Value.of(v, digits=1) for h, v in row.figures.items() if h in SHOWN}
                rows.append(Row({"task": name, "method": method}, cells | {"changed answers": row.changed}))
    return rows


def _verdicts(distribution: str, answered: Answered) -> list[Verdict]:
    pairs = (
        ("the guard lowers CHAIR_i at equal recall", PLAIN, GUARD),
        ("the guard is better than dropping as many sentences at random", BY_CHANCE, GUARD),
        ("the detector is better than log-probability", BY_LOGPROB, GUARD),
        ("generating again is better than dropping", GUARD, RETRY),
        ("HEAL's calibration lowers CHAIR_i at equal recall", PLAIN, HEALED),
        ("the guard adds to HEAL's calibration", HEALED, BOTH),
    )
    found = []
    for claim, first, second in pairs:
        gain = answered.gain(first, second)
        if gain is not None:
            highest = f"; {Value.of(gain.highest)} at the highest recall, {gain.highest_recall:.1f}"
            made = compared(f"{claim} ({distribution})", gain.mean, answered, (first, second), expected="↓")
            found.append(replace(made, text=made.text + ("" if made.outcome == Outcome.TOO_FEW else highest)))
    for figure, name in (("chair_s", "CHAIR_s"), ("recall", "recall")):
        changed = answered.differences(PLAIN, GUARD)[figure]
        claim = f"difference of {name} between guard and plain ({distribution})"
        found.append(compared(claim, changed, answered, (PLAIN, GUARD), digits=1))
    return found


def _unchanged(found: Found) -> list[Verdict]:
    """Whether answers to questions are those of the plain model."""
    evaluated, verdicts = found.evaluation(QUESTIONS), []
    for name, samples in evaluated.samples.items():
        plain, guarded = (evaluated.texts(name, method) for method in (PLAIN, GUARD))
        changed = sum(guarded.get(id) != text for id, text in plain.items())
        outcome = Outcome.CONSISTENT if not changed else Outcome.CONTRADICTED
        verdicts.append(
            Verdict(f"{name} unchanged", outcome, f"{name}: the guard changes {changed} of {len(samples)} answers")
        )
    return verdicts


def _notes(setup: Setup) -> tuple[str, ...]:
    where = (
        f"scenes of the validation split with seed {setup.seed + 1}, on which the detector was not fitted"
        if setup.data is None
        else "the first half of the images; the second half is judged. Fit the detector to other images"
    )
    return (
        f"Threshold: the one with the lowest CHAIR_i among those that lose at most {LOSS} points of recall on "
        f"{where}. Log-probability gets its threshold by the same rule. The random guard drops as many sentences.",
        EQUAL_RECALL_NOTE,
        f"Other methods have their published options and describe the first {MOST_OTHERS} images.",
    )


def _lines(curve: Sequence[Row], distribution: str) -> Mapping[str, Curve]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in curve:
        if row.labels["distribution"] == distribution:
            recall, chair = (row.values[name] for name in ("recall", "CHAIR_i ↓"))
            assert isinstance(recall, Value)
            assert isinstance(chair, Value)
            found.setdefault(f"guard by {row.labels['risk']}", []).append((recall.value, chair.value))
    return found


def _points(answered: Answered, others: Answered, found: Found) -> dict[str, tuple[Interval, Interval]]:
    """(recall, CHAIR_i) of each method."""
    at = thresholds(found)
    every = [(answered, m) for m in settings(found.setup, at)]
    every += [(others, m) for m in other_methods(found.setup) if m != PLAIN]
    return {m: (own.figure(m, "recall"), own.figure(m, "chair_i")) for own, m in every}


def _figure(lines: Mapping[str, Curve], points: Mapping[str, tuple[Interval, Interval]]) -> Figure:
    from heal.plots.guard import against_recall

    return against_recall(lines, points)


STUDY = Study(
    "guard",
    "ours: sentences with risky words left out, against random dropping, log-probability, HEAL and all other methods",
    "ours",
    parts,
    report,
    follow_up,
    benchmarks=("chair", "pope", "mme"),
)
