"""What HEAL measures against information in a histogram, one point per head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.plots import figure as figures
from heal.studies.pid import ATOMS, PAIRS, Distribution

COLOURS = ("#009e73", "#e69f00", "#777777", "#0072b2")
"""Unique visual, unique language, redundancy, synergy."""
SCORES = {"i_syn": "I_syn", "i_vis": "I_vis", "i_lang": "I_lang"}
BITS = {"interaction": "S − R, bits", "of_visual": "I(V; Y), bits", "of_language": "I(L; Y), bits"}


def pid_figure(found: Mapping[str, Distribution]) -> Figure:
    """Per distribution: three scatter plots, and the atoms under each measure of redundancy."""
    figure = figures.new(14.5, 3.8 * max(1, len(found)))
    grid = figure.subplots(max(1, len(found)), len(PAIRS) + 1, squeeze=False)
    for (name, own), row in zip(found.items(), grid, strict=True):
        for (pair, score, bits), axes in zip(PAIRS, row, strict=False):
            _scatter(axes, own, pair, score, bits)
        _atoms(row[-1], own)
        row[0].set_ylabel(f"{name}\n{BITS['interaction']}")
        for axes in row:
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _scatter(axes: Axes, own: Distribution, pair: str, score: str, bits: str) -> None:
    if own.heads is not None:
        axes.scatter(getattr(own.heads, score), getattr(own.heads, bits), s=14, color="#0072b2", alpha=0.7)
        axes.set_title(f"ρ = {own.correlations[pair].value:.2f}", fontsize=10)
    axes.set(xlabel=f"mean {SCORES[score]} of a head", ylabel=BITS[bits])
    axes.locator_params(axis="x", nbins=4)


def _atoms(axes: Axes, own: Distribution) -> None:
    width = 0.8 / len(ATOMS)
    places = np.arange(len(own.atoms))
    for at, (atom, colour) in enumerate(zip(ATOMS, COLOURS, strict=True)):
        heights = [found[:, at].mean() for found in own.atoms.values()]
        axes.bar(places + (at - 1.5) * width, heights, width, color=colour, label=atom)
    axes.axhline(0, color="#222222", linewidth=0.8)
    axes.set_xticks(places, list(own.atoms))
    axes.set(ylabel="mean over heads, bits", title="atoms by measure of redundancy")
    axes.title.set_fontsize(10)
    axes.set_ylim(top=1.4 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
