"""CHAIR_i against recall: the guard at every threshold, and all methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures
from heal.plots.series import bars

Curve = Sequence[tuple[float, float]]
"""(recall, CHAIR_i) at each threshold."""
STYLES = ("-", "--", ":")
MARKERS = "osD^vPX<>*ph"


def against_recall(lines: Mapping[str, Curve], points: Mapping[str, tuple[Interval, Interval]]) -> Figure:
    """Draw curves, and points (recall, CHAIR_i) with intervals. Down and to the right is better."""
    figure = figures.new(7.6, 5.0)
    axes = figure.subplots()
    for (name, curve), style in zip(lines.items(), STYLES * len(lines), strict=False):
        recall, chair = zip(*curve, strict=True)
        axes.plot(recall, chair, style, color="#333333", linewidth=1.4, label=name)
    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
    for number, (name, (found, wrong)) in enumerate(points.items()):
        axes.errorbar(
            [found.value],
            [wrong.value],
            xerr=bars([found]),
            yerr=bars([wrong]),
            marker=MARKERS[number % len(MARKERS)],
            color=colours[number % len(colours)],
            linestyle="none",
            elinewidth=0.7,
            label=name,
        )
    axes.set(xlabel="recall (present objects that are named), %", ylabel="CHAIR_i (hallucinated mentions), %")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    return figure
