"""Differences of methods to a reference with their intervals, one panel per figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures

BLUE, VERMILION, GREY = "#0072b2", "#d55e00", "#666666"
"""From the palette by Okabe and Ito, which is safe for colour-blind readers."""
WIDTH, LINE = 3.6, 0.28


@dataclass(frozen=True)
class Panel:
    """One figure of all methods. Methods without a value have an empty line."""

    title: str
    lower_is_better: bool
    differences: Mapping[str, Interval]


def differences(panels: Sequence[Panel], ours: Sequence[str] = ()) -> Figure:
    """One line per method, the first one on top. Filled: the interval does not contain zero."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.differences))
    figure = figures.new(WIDTH * max(1, len(panels)) + 1.2, LINE * max(4, len(names)) + 1.0)
    grid = figure.subplots(1, max(1, len(panels)), squeeze=False, sharey=True)[0]
    for axes, panel in zip(grid, panels, strict=False):
        axes.axvline(0, color=GREY, linewidth=1)
        for place, name in enumerate(names):
            found = panel.differences.get(name)
            if found is None or math.isnan(found.value):
                continue
            colour = VERMILION if name in ours else BLUE
            if not math.isnan(found.low):
                axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1.6)
            inside = colour if found.excludes_zero else "white"
            axes.plot([found.value], [place], "o", color=colour, markerfacecolor=inside, markersize=5)
        better = "lower" if panel.lower_is_better else "higher"
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.set_xlabel(f"difference to plain ({better} is better)", fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.grid(alpha=0.25, axis="x")
    grid[0].set_ylim(max(1, len(names)) - 0.5, -0.5)
    return figure
