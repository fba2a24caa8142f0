"""Quality against cost, one point per method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from heal.errors import ConfigError
from heal.plots import figure as figures
from heal.studies.comparison import ComparisonRow

HEADINGS = ("POPE F1", "CHAIR_s ↓", "Recall", "MME")


@dataclass(frozen=True)
class Point:
    method: str
    cost: float
    value: float
    low: float
    high: float


def panels(table: Sequence[ComparisonRow]) -> dict[str, list[Point]]:
    """One panel per figure of a comparison."""
    return {
        heading: [_point(line, heading) for line in table if heading in line.figures]
        for heading in HEADINGS
        if any(heading in line.figures for line in table)
    }


def _point(line: ComparisonRow, heading: str) -> Point:
    found = line.figures[heading]
    cost = 1.0 if math.isnan(line.time_ratio) else line.time_ratio
    return Point(line.method, cost, found.value, found.low, found.high)


def quality_against_cost(panels: Mapping[str, Sequence[Point]]) -> Figure:
    """Plot one panel per figure, with the time per token as a ratio to the plain model on the x-axis."""
    if not panels:
        raise ConfigError("there is nothing to plot: the comparison has none of " + ", ".join(HEADINGS))
    figure = figures.new(4.6 * len(panels), 3.8)
    for (name, points), axes in zip(panels.items(), figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        for point in points:
            ours = point.method.startswith("heal")
            error = [[max(point.value - point.low, 0)], [max(point.high - point.value, 0)]]
            axes.errorbar(
                point.cost, point.value, yerr=error, fmt="o", color="#3b74c9" if ours else "#666666", capsize=2
            )
            axes.annotate(
                point.method, (point.cost, point.value), xytext=(5, 4), textcoords="offset points", fontsize=8
            )
        axes.set(title=name, xlabel="time per token (ratio to plain)")
        axes.grid(alpha=0.25)
    return figure
