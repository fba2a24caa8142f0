"""Settings of HEAL compared with a reference: agreement, POPE F1, and the mix of synergy heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures
from heal.plots.heads_by_token import CORRECT, HALLUCINATED
from heal.studies.agreement import NOTHING, VISUAL
from heal.studies.robustness import Result, Results, Topic

OURS, PAPER = "#333333", "#cc79a7"
MARK = {"marker": "D", "markerfacecolor": "none", "color": PAPER, "linestyle": "none", "markersize": 6}
"""The paper's figures: hollow diamonds."""


def robustness(every: Results, topic: Topic) -> Figure:
    """One row of panels for each distribution: agreement, POPE F1, visual share at correct and hallucinated names."""
    height = 0.34 * max(len(own) for own in every.values()) + 1.1
    figure = figures.new(11.0, height * len(every) + 0.5)
    grid = figure.subplots(len(every), 3, squeeze=False, sharey="row")
    for (distribution, own), (first, second, third) in zip(every.items(), grid, strict=True):
        agreed = [result.agreements.get(topic.against) for result in own]
        _points(first, [NOTHING if a is None else topic.of(a) for a in agreed], [_agreed(r, topic) for r in own])
        _points(second, [result.f1 for result in own], [result.paper("pope_f1") for result in own])
        _mix(third, own)
        first.set_yticks(range(len(own)), [result.label for result in own], fontsize=9)
        first.invert_yaxis()
        first.set_ylabel(distribution)
        for axes, title in (
            (first, f"{topic.heading} as {topic.against}, %"),
            (second, "POPE F1"),
            (third, "I_vis / I_total of synergy heads"),
        ):
            axes.set_title(title, loc="left", fontsize=10)
            axes.grid(axis="x", alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, grid[0, 2])
    return figure


def _agreed(result: Result, topic: Topic) -> float | None:
    return None if result.label == topic.against else result.paper("agreement")


def _points(axes: Axes, values: Sequence[Interval], printed: Sequence[float | None]) -> None:
    places = np.arange(len(values))
    axes.errorbar([v.value for v in values], places, xerr=errors(values), fmt="o", color=OURS, capsize=2.5)
    axes.plot([np.nan if p is None else p for p in printed], places, **MARK)  # type: ignore[arg-type]


def _mix(axes: Axes, own: Sequence[Result]) -> None:
    compared = [result.drift[VISUAL] for result in own]
    for shift, colour, label, kind, means in (
        (-0.14, CORRECT, "correct", "correct", [c.mean_correct for c in compared]),
        (0.14, HALLUCINATED, "hallucinated", "hallucinated", [c.mean_hallucinated for c in compared]),
    ):
        places = np.arange(len(own)) + shift
        values = [m.value for m in means]
        axes.errorbar(values, places, xerr=errors(means), fmt="o", color=colour, capsize=2.5, label=label)
        printed = [result.paper(kind, "visual") for result in own]
        axes.plot([np.nan if p is None else p for p in printed], places, **MARK)  # type: ignore[arg-type]


def errors(values: Sequence[Interval]) -> np.ndarray:
    """Lengths of the error bars; NaN, which draws nothing, without an interval."""
    return np.maximum(np.array([[v.value - v.low for v in values], [v.high - v.value for v in values]]), 0)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    (paper,) = axes.plot([], [], **MARK)  # type: ignore[arg-type]
    figure.legend([*handles, paper], [*labels, "paper"], loc="outside upper center", ncols=3, frameon=False)
