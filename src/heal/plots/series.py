"""Panels of values with intervals along the settings of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures

BLUE, VERMILION, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#666666"
"""From the palette by Okabe and Ito, which is safe for colour-blind readers."""
COLOURS = (BLUE, VERMILION, GREEN, "#cc79a7")
MARKERS = ("o", "s", "^", "D")
WIDTH, HEIGHT = 3.7, 2.9


@dataclass(frozen=True)
class Panel:
    """Lines over the same settings. Values without an interval are drawn without an error bar."""

    title: str
    unit: str
    settings: Sequence[str]
    lines: Mapping[str, Sequence[Interval]]
    """By the label of the line, one value for each setting; NaN is left out."""
    base: Interval | None = None
    """A value that does not depend on the setting, drawn as a horizontal line."""
    axis: str = ""
    """What the settings are."""


def panels(found: Sequence[Panel], columns: int, base_label: str = "plain") -> Figure:
    """All panels in rows of `columns`, with one legend."""
    rows = -(-len(found) // columns)
    figure = figures.new(WIDTH * columns, HEIGHT * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, panel in zip(grid, found, strict=False):
        _panel(axes, panel, base_label)
    for axes in grid[len(found) :]:
        axes.set_axis_off()
    known: dict[str, Artist] = {}
    for axes in grid:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(list(known.values()), list(known), loc="outside upper center", ncols=4, frameon=False)
    return figure


def _panel(axes: Axes, panel: Panel, base_label: str) -> None:
    places = np.arange(len(panel.settings))
    if panel.base is not None:
        axes.axhline(panel.base.value, color=GREY, linestyle="--", linewidth=1.2, label=base_label)
        if not np.isnan(panel.base.low):
            axes.axhspan(panel.base.low, panel.base.high, color=GREY, alpha=0.12, linewidth=0)
    shifts = (np.arange(len(panel.lines)) - (len(panel.lines) - 1) / 2) * 0.08
    for number, ((label, values), shift) in enumerate(zip(panel.lines.items(), shifts, strict=True)):
        axes.errorbar(
            places + shift,
            [v.value for v in values],
            yerr=bars(values),
            label=label,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4.5,
            linewidth=1.5,
            capsize=2.5,
        )
    axes.set_xticks(places, panel.settings)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.set_ylabel(panel.unit, fontsize=9)
    axes.set_xlabel(panel.axis, fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def bars(values: Sequence[Interval]) -> np.ndarray:
    """Lengths of the error bars below and above; 0 without an interval."""
    below = [v.value - v.low for v in values]
    above = [v.high - v.value for v in values]
    return np.maximum(np.nan_to_num(np.array([below, above])), 0)
