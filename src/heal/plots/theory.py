"""The theorems of calibration against measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures
from heal.studies.theory import ALL, LIMITS, Distribution
from heal.studies.theory_measurement import ALPHAS, RUN

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"


def theory_figure(found: Mapping[str, Distribution]) -> Figure:
    """Per distribution: M ≥ 0 by layer, alignment by layer, and α reached against α asked."""
    figure = figures.new(13.0, 3.9 * max(1, len(found)))
    grid = figure.subplots(max(1, len(found)), 3, squeeze=False)
    for (name, own), row in zip(found.items(), grid, strict=True):
        _margins(row[0], own)
        _alignments(row[1], own)
        _mixes(row[2], own)
        row[0].set_title(f"{name}: layers that turn to the image", fontsize=10)
        row[1].set_title(f"{name}: alignment with the image", fontsize=10)
        row[2].set_title(f"{name}: mix after calibration", fontsize=10)
        for axes in row:
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=8)
    return figure


def _margins(axes: Axes, own: Distribution) -> None:
    layers = np.arange(own.layers)
    means = [own.intervals[f"{layer} margin"] for layer in layers]
    axes.bar(layers, [m.value for m in means], color=BLUE, label="M ≥ 0")
    axes.errorbar(layers, [m.value for m in means], yerr=_errors(means), fmt="none", ecolor="#222222", capsize=2)
    if own.layers:
        whole = own.intervals[f"{ALL} margin"].value
        axes.axhline(whole, color=GREY, linestyle="--", linewidth=1, label=f"all layers: {whole:.0f} %")
    axes.set(xlabel="layer", ylabel="% of steps", ylim=(0, 135))
    axes.set_yticks(range(0, 101, 20))


def _alignments(axes: Axes, own: Distribution) -> None:
    layers = np.arange(own.layers)
    for alpha, colour in zip((ALPHAS[0], ALPHAS[-1]), (ORANGE, BLUE), strict=True):
        predicted = [own.intervals[f"{layer} predicted {alpha}"].value for layer in layers]
        axes.plot(layers, predicted, color=colour, linestyle="--", label=f"predicted, α = {alpha:g}")
        if alpha in RUN:
            measured = [own.intervals[f"{layer} measured {alpha}"].value for layer in layers]
            axes.plot(layers, measured, color=colour, marker="o", markersize=4, label=f"in the model, α = {alpha:g}")
    plain = [own.intervals[f"{layer} plain"].value for layer in layers]
    axes.plot(layers, plain, color=GREY, marker="^", markersize=4, label="plain")
    axes.set(xlabel="layer", ylabel="cos(G·r, u_v)")


def _mixes(axes: Axes, own: Distribution) -> None:
    axes.plot(ALPHAS, ALPHAS, color=GREY, linestyle=":", label="exact")
    for limit, colour, marker in zip(LIMITS if own.bounded else LIMITS[:1], (BLUE, GREEN), ("o", "s"), strict=False):
        if not own.layers:
            continue
        means = [own.intervals[f"reached {limit} {alpha}"] for alpha in ALPHAS]
        axes.errorbar(
            ALPHAS,
            [m.value for m in means],
            yerr=_errors(means),
            color=colour,
            marker=marker,
            label=f"reached, {limit}",
        )
        errors = [own.intervals[f"error {limit} {alpha}"].value for alpha in ALPHAS]
        axes.plot(ALPHAS, errors, color=colour, linestyle="--", marker=marker, label=f"|reached − α|, {limit}")
    if own.layers:
        before = [own.intervals[f"error before unbounded {alpha}"].value for alpha in ALPHAS]
        axes.plot(ALPHAS, before, color=ORANGE, linestyle="--", marker="^", label="|plain − α|")
    axes.set(xlabel="α asked for", ylabel="mean over heads", ylim=(0, None))


def _errors(means: Sequence[Interval]) -> np.ndarray:
    return np.maximum(np.array([[m.value - m.low for m in means], [m.high - m.value for m in means]]), 0)
