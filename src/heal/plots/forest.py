"""Values with intervals, one row for each name: for comparisons whose order has no meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures
from heal.plots.series import COLOURS, GREY, MARKERS, bars

WIDTH, ROW, MARGINS = 4.4, 0.3, 1.4


@dataclass(frozen=True)
class Column:
    """One value of every row."""

    title: str
    axis: str
    """What the value is, with its unit."""
    series: Mapping[str, Sequence[Interval]]
    """By the label in the legend, one value for each row; NaN is left out."""
    reference: float
    """Drawn as a vertical line."""
    logarithmic: bool = False


def forest(rows: Sequence[str], columns: Sequence[Column]) -> Figure:
    """The first row is at the top. Values without an interval are drawn without an error bar."""
    figure = figures.new(WIDTH * len(columns) + 1, ROW * len(rows) + MARGINS)
    every = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for axes, column in zip(every, columns, strict=True):
        _column(axes, column, len(rows))
    every[0].set_yticks(range(len(rows)), rows)
    every[0].invert_yaxis()
    handles, labels = every[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _column(axes: Axes, column: Column, rows: int) -> None:
    axes.axvline(column.reference, color=GREY, linestyle="--", linewidth=1.2)
    shifts = (np.arange(len(column.series)) - (len(column.series) - 1) / 2) * 0.22
    for number, ((label, values), shift) in enumerate(zip(column.series.items(), shifts, strict=True)):
        axes.errorbar(
            [v.value for v in values],
            np.arange(rows) + shift,
            xerr=bars(values),
            label=label,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4.5,
            linestyle="none",
            elinewidth=1.5,
            capsize=2.5,
        )
    if column.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(column.title, loc="left", fontsize=10)
    axes.set_xlabel(column.axis, fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
