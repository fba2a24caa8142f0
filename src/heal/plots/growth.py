"""Time and memory per token against context and batch."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.growth import Growth, Point
from heal.plots import figure as figures

PLAIN, HEAL = "#666666", "#3b74c9"


def growth_figure(found: Growth) -> Figure:
    """Three panels: time by context, time by batch, and memory by context."""
    shortest = min(p.context for p in found.points)
    by_context = [p for p in found.points if p.batch == 1]
    by_batch = [p for p in found.points if p.context == shortest]
    figure = figures.new(13.0, 3.8)
    axes = figure.subplots(1, 3)
    _times(axes[0], found, by_context, "context")
    _times(axes[1], found, by_batch, "batch")
    _memory(axes[2], by_context)
    return figure


def _times(axes: Axes, found: Growth, points: list[Point], axis: str) -> None:
    x = [getattr(p, axis) for p in points]
    for name, colour in (("plain", PLAIN), ("heal", HEAL)):
        line = next(one for one in found.lines if one.name == f"{name} by {axis}")
        axes.plot(x, [getattr(p, f"{name}_ms") for p in points], "o", color=colour)
        label = f"{name}: {line.slope * 1e3:.2g} µs each, R² {line.r_squared:.3f}"
        axes.plot(x, [line.slope * at + line.offset for at in x], color=colour, label=label)
    axes.set(title=f"time per token by {axis}", xlabel=axis, ylabel="ms")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


def _memory(axes: Axes, points: list[Point]) -> None:
    x = [p.context for p in points]
    for label, name in (("KV cache", "kv_bytes"), ("HEAL, peak", "workspace_bytes"), ("HEAL, state", "state_bytes")):
        colour = HEAL if label.startswith("HEAL") else PLAIN
        style = "o--" if name == "state_bytes" else "o-"
        axes.plot(x, [getattr(p, name) / 1e6 for p in points], style, color=colour, label=label)
    axes.set(title="memory by context", xlabel="context", ylabel="MB", xscale="log", yscale="log")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)
