"""Map of head types by layer and head."""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from heal.analysis.taxonomy import HeadType
from heal.errors import ConfigError
from heal.plots import figure as figures

COLOURS = {
    HeadType.CAUSAL_REDUNDANT: "#b8b8b8",
    HeadType.INFO_REDUNDANT: "#dedede",
    HeadType.VISUAL: "#3aa655",
    HeadType.LANGUAGE: "#f2c230",
    HeadType.SYNERGY: "#3b74c9",
    HeadType.UNKNOWN: "#ffffff",
}


def head_map(types: UInt8[np.ndarray, "layer head"], title: str = "Head types") -> Figure:
    """Plot head types: visual is green, synergy blue, language yellow, redundant grey."""
    layers, heads = types.shape
    order = list(COLOURS)
    if odd := sorted(set(np.unique(types).tolist()) - {int(kind) for kind in order}):
        raise ConfigError(f"types has values that are not a HeadType: {odd}")
    if not types.size:
        raise ConfigError("there are no heads to plot: types has no layers or no heads")
    index = np.vectorize({int(kind): i for i, kind in enumerate(order)}.__getitem__, otypes=[int])(types)
    figure = figures.new(2.6 + 0.32 * heads, 1.6 + 0.26 * layers)
    axes = figure.add_subplot()
    axes.pcolormesh(
        np.arange(heads + 1) - 0.5,
        np.arange(layers + 1) - 0.5,
        index,
        cmap=ListedColormap([COLOURS[kind] for kind in order]),
        norm=BoundaryNorm(np.arange(len(order) + 1) - 0.5, len(order)),
        edgecolors="white",
        linewidth=1.2,
    )
    axes.invert_yaxis()
    axes.set(title=title, xlabel="head", ylabel="layer", aspect="equal")
    axes.set_xticks(range(0, heads, max(1, heads // 8)))
    axes.set_yticks(range(0, layers, max(1, layers // 8)))
    shown = [kind for kind in order if (types == int(kind)).any()]
    handles = [
        Patch(facecolor=COLOURS[k], edgecolor="#888888", label=f"{k.label} {(types == int(k)).sum()}") for k in shown
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure
