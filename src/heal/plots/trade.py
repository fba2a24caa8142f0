"""What the strength of a method buys and what it costs: one line a method, one point a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.figure import Figure

from heal.plots import figure as figures
from heal.studies.comparison import Line

RECALL, MADE_UP = "Recall", "CHAIR_s ↓"
Curve = Sequence[tuple[float, float]]


def curves(table: Sequence[Line]) -> dict[str, Curve]:
    """(recall, CHAIR_s) of each setting, by method: `vcd 1`, `vcd 2`, … are settings of vcd."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in table:
        name, _, number = line.method.rpartition(" ")
        place = (line.figures[RECALL].value, line.figures[MADE_UP].value)
        found.setdefault(name if number.isdigit() else line.method, []).append(place)
    return dict(found)


def trade_off(found: Mapping[str, Curve]) -> Figure:
    """Up and to the right is better: more of what is there named, fewer answers with something made up."""
    figure = figures.new(6.4, 4.4)
    axes, colours = figure.subplots(), iter(colormaps["tab10"].colors)  # type: ignore[attr-defined]
    for name, points in found.items():
        recall, made_up = zip(*points, strict=True)
        if len(points) == 1:
            axes.plot(recall, made_up, "*", color="black", markersize=13, label=name)
            continue
        ours = name.startswith("heal")
        axes.plot(recall, made_up, "-", marker="o", color=next(colours), label=name, linewidth=2.6 if ours else 1.2)
    axes.invert_yaxis()
    axes.set(xlabel="objects named that are there, %", ylabel="answers with something made up, %")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    return figure
