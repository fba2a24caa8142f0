"""Trade-off between hallucination and recall: one line per method, one point per setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.figure import Figure

from heal.plots import figure as figures
from heal.studies.comparison import ComparisonRow

RECALL, CHAIR_S = "Recall", "CHAIR_s ↓"
Curve = Sequence[tuple[float, float]]


def curves(table: Sequence[ComparisonRow]) -> dict[str, Curve]:
    """(recall, CHAIR_s) per setting, by method: `vcd 1`, `vcd 2`, … are settings of vcd."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in table:
        name, _, number = line.method.rpartition(" ")
        place = (line.figures[RECALL].value, line.figures[CHAIR_S].value)
        found.setdefault(name if number.isdigit() else line.method, []).append(place)
    return dict(found)


def trade_off(found: Mapping[str, Curve]) -> Figure:
    """Plot the trade-off. Up and to the right is better: higher recall, fewer hallucinations."""
    figure = figures.new(6.4, 4.4)
    axes, colours = figure.subplots(), iter(colormaps["tab10"].colors)  # type: ignore[attr-defined]
    for name, points in found.items():
        recall, chair_s = zip(*points, strict=True)
        if len(points) == 1:
            axes.plot(recall, chair_s, "*", color="black", markersize=13, label=name)
            continue
        ours = name.startswith("heal")
        axes.plot(recall, chair_s, "-", marker="o", color=next(colours), label=name, linewidth=2.6 if ours else 1.2)
    axes.invert_yaxis()
    axes.set(xlabel="Recall (present objects that are named), %", ylabel="CHAIR_s (answers with hallucinations), %")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    return figure
