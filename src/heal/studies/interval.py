"""Fig. 5a: quality and cost if head types are refreshed every S steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from heal.bench.score.bootstrap import Interval
from heal.methods import HEAL, Method
from heal.studies import paper_models
from heal.studies.answered import EQUAL_RECALL, EQUAL_RECALL_NOTE, Answered, caption_cells
from heal.studies.comparison import EMBEDDED_HEAL
from heal.studies.parts import Evaluation, Part, Records
from heal.studies.setup import Setup
from heal.studies.study import Cell, Found, Report, Row, Study, Table, Value, Verdict
from heal.studies.timing import Times, ratio_between, timed, times_of
from heal.studies.verdicts import compared, judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (2, 5, 10, 15, 20)
NEVER = 1_000_000
"""Types are found once, after the prompt."""
PLAIN, ONCE = "plain", "once"
POPE_F1, MS, RATIO = "POPE F1", "ms per token", "time ratio"
ANSWERS, TIMES = "answers", "times"


def chosen(setup: Setup) -> HEAL:
    """The form of HEAL: what the user gave, else the form that was chosen for the embedded model on its validation
    split, else the default."""
    given = any(isinstance(method, HEAL) for method in setup.methods.values())
    return EMBEDDED_HEAL if setup.model == "embedded" and not given else setup.heal


def settings(setup: Setup) -> dict[str, Method | None]:
    """The plain model, and HEAL by its interval."""
    form = chosen(setup)
    by_interval = {str(steps): replace(form, interval=steps) for steps in STEPS}
    return {PLAIN: None, **by_interval, ONCE: replace(form, interval=NEVER)}


def parts(setup: Setup) -> list[Part]:
    methods = settings(setup)
    images = setup.captions(setup.distributions[0])
    options = {"methods": {n: None if m is None else m.options() for n, m in methods.items()}, "count": len(methods)}
    return [
        Evaluation(ANSWERS, setup.tasks("chair", "pope"), methods, setup.settings),
        timed(TIMES, images, lambda vlm: (methods, {}), options),
    ]


def report(found: Found) -> Report:
    setup = found.setup
    speed, _ = times_of(found.records(TIMES), PLAIN, setup.seed)
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    for distribution in setup.distributions:
        captions = Answered.of(found, ANSWERS, "chair", distribution)
        questions = Answered.of(found, ANSWERS, "pope", distribution)
        rows += [_row(distribution, name, captions, questions, speed) for name in settings(setup)]
        verdicts += _verdicts(distribution, captions, questions)
    verdicts.append(_cost(found.records(TIMES), setup.seed))
    shown = {d: {r.labels["S"]: r.values for r in rows if r.labels["distribution"] == d} for d in setup.distributions}
    length = max(
        Answered.of(found, ANSWERS, "pope", d).row(name).mean_tokens
        for d in setup.distributions
        for name in settings(setup)
    )
    return Report(
        (Table("interval", rows, "Quality and cost by update interval S"),),
        verdicts,
        {"interval": lambda: _figure(shown)},
        _notes(chosen(setup), length),
    )


def _notes(form: HEAL, length: float) -> tuple[str, ...]:
    return (
        f"Form of HEAL: α {'of the family' if form.alpha is None else form.alpha}, drift {form.drift}. S: steps "
        "between two refreshes of the head types; once: found after the prompt and never refreshed.",
        f"POPE: the answers have {length:.1f} tokens on average, so refreshes after more steps cannot change them.",
        EQUAL_RECALL_NOTE,
        "Times: one image at a time, all methods in turn; medians over images, ratios to the plain model on the same "
        "image. Peak memory does not depend on S.",
        paper_models.NOTE,
    )


def _row(distribution: str, name: str, captions: Answered, questions: Answered, speed: Mapping[str, Times]) -> Row:
    paper = paper_models.both("interval", "pope_f1", name) if name.isdigit() else None
    values: dict[str, Cell] = {POPE_F1: Value.of(questions.figure(name, "f1"), paper=paper, digits=1)}
    values |= caption_cells(captions, name)
    if name in speed:
        values |= {MS: Value.of(speed[name].ms, digits=2), RATIO: Value.of(speed[name].ratio, digits=2)}
    return Row({"distribution": distribution, "S": name}, values)


def _verdicts(distribution: str, captions: Answered, questions: Answered) -> list[Verdict]:
    """The paper: F1 falls slightly from S = 2 to 20, and S = 10 is as good as S = 2."""
    slow, usual, fast = "20", "10", "2"
    f1 = questions.differences(fast, slow)["f1"]
    chair = captions.differences(fast, usual)["chair_i"]
    late = captions.differences(fast, slow)["chair_i"]
    lower, same, higher = (
        f"{claim} ({distribution})"
        for claim in (
            "lower POPE F1 at S = 20 than at S = 2",
            "CHAIR_i at S = 10 as at S = 2",
            "higher CHAIR_i at S = 20 than at S = 2",
        )
    )
    paper = paper_models.difference("interval", "pope_f1", fast, slow)
    return [
        compared(lower, f1, questions, (fast, slow), paper=paper, expected="↓"),
        compared(same, chair, captions, (fast, usual), expected="="),
        compared(higher, late, captions, (fast, slow), expected="↑"),
    ]


def _cost(records: Records, seed: int) -> Verdict:
    """The time at S = 10 relative to that at S = 2, minus 1."""
    found = ratio_between(records, "2", "10", seed)
    less = Interval(found.value - 1, found.low - 1, found.high - 1)
    return judged(
        "less time per token at S = 10 than at S = 2", Value.of(less, expected="↓", n=len(records)), "images"
    )


def _figure(found: Mapping[str, Mapping[str, Mapping[str, Cell]]]) -> Figure:
    from heal.plots.series import Panel, panels

    first = next(iter(found.values()))
    names = [name for name in first if name != PLAIN]
    kinds = (
        (POPE_F1, "%", True),
        ("CHAIR_i ↓", "%", True),
        (EQUAL_RECALL, "points", False),
        (RATIO, "× plain", True),
    )
    drawn = []
    for heading, unit, has_base in kinds:
        some = {RATIO: dict([next(iter(found.items()))])}.get(heading, found)
        lines = {
            f"HEAL, {distribution}": [_interval(rows[name].get(heading)) for name in names]
            for distribution, rows in some.items()
        }
        base = _interval(first[PLAIN].get(heading)) if has_base and len(some) == 1 else None
        zero = Interval(0.0, 0.0, 0.0) if heading == EQUAL_RECALL else base
        drawn.append(Panel(heading, unit, names, lines, zero, "update interval S"))
    return panels(drawn, 2)


def _interval(cell: Cell) -> Interval:
    return cell.interval if isinstance(cell, Value) else Interval(*[float("nan")] * 3)


STUDY = Study(
    "interval",
    "quality and cost if head types are refreshed every 2, 5, 10, 15 or 20 steps, or once",
    "Fig. 5a and the table of update intervals",
    parts,
    report,
    benchmarks=("chair", "pope"),
)
