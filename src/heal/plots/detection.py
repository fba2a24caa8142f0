"""Figures of hallucination detection: AUROC beside baselines, reliability, and the learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.detect.evaluation import DETECTOR, Verdict
from heal.plots import figure as figures

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Of the palette by Okabe and Ito, which is safe for colour-blind readers."""


def comparison(verdicts: Sequence[Verdict]) -> Figure:
    """AUROC of the detector and of every baseline, one panel for each kind of images."""
    shown = [own for own in verdicts if own.figures]
    kinds = list(dict.fromkeys(own.kind for own in shown))
    names = [own.name for own in shown[0].figures] if shown else []
    figure = figures.new(5.5 * max(len(kinds), 1) + 1.5, 0.34 * len(names) + 1.2)
    panels = figure.subplots(1, max(len(kinds), 1), sharey=True, squeeze=False)[0]
    for kind, axes in zip(kinds, panels, strict=False):
        for index, one in enumerate(own for own in shown if own.kind == kind):
            values = [figures_.auroc for figures_ in one.figures]
            _dots(
                axes, values, np.arange(len(names)) + (index - 0.5) * 0.22, COLOURS[index], f"{one.mentions} mentions"
            )
        axes.axvline(0.5, color="#999999", linewidth=0.8)
        axes.set_yticks(np.arange(len(names)), names, fontsize=8)
        axes.set_xlabel("AUROC")
        axes.set_title(kind, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    if names:
        panels[0].invert_yaxis()
        panels[-1].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _dots(axes: Axes, values: Sequence[Interval], places: np.ndarray, colour: str, label: str) -> None:
    middle = np.array([own.value for own in values])
    errors = np.abs(np.array([[own.value - own.low for own in values], [own.high - own.value for own in values]]))
    axes.errorbar(middle, places, xerr=errors, fmt="o", markersize=4, capsize=2, color=colour, label=label)


def reliability(verdicts: Sequence[Verdict]) -> Figure:
    """The share of hallucinated words against the risk that the detector gave them."""
    figure = figures.new(5.0, 4.4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
    shown = [own for own in verdicts if own.reliability and own.mentions == "all"]
    for one, colour in zip(shown, COLOURS, strict=False):
        risk = [own.risk for own in one.reliability]
        shares = [own.share for own in one.reliability]
        middle = np.array([own.value for own in shares])
        errors = np.abs(np.array([middle - [own.low for own in shares], [own.high for own in shares] - middle]))
        axes.errorbar(risk, middle, yerr=errors, marker="o", markersize=4, capsize=2, color=colour, label=one.kind)
    axes.set_xlabel("risk of the detector")
    axes.set_ylabel("share of hallucinated words")
    axes.spines[["top", "right"]].set_visible(False)
    if shown:
        axes.legend(frameon=False)
    return figure


def learning_curve(curves: Mapping[str, Mapping[int, Sequence[float]]]) -> Figure:
    """AUROC against the number of labelled captions; the range is over random choices of captions."""
    figure = figures.new(5.4, 4.0)
    axes = figure.subplots()
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        sizes = np.array(sorted(curve))
        values = [np.asarray(curve[size]) for size in sizes]
        axes.plot(sizes, [own.mean() for own in values], marker="o", markersize=4, color=colour, label=name)
        axes.fill_between(
            sizes, [own.min() for own in values], [own.max() for own in values], color=colour, alpha=0.2, linewidth=0
        )
    axes.set_xscale("log")
    axes.set_xlabel("labelled captions")
    axes.set_ylabel(f"AUROC of the {DETECTOR}")
    axes.spines[["top", "right"]].set_visible(False)
    if curves:
        axes.legend(frameon=False)
    return figure
