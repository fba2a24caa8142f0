"""Figure 1 of the paper: heads at correct and at hallucinated object names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures
from heal.studies.statistics import Compared

CORRECT, HALLUCINATED = "#0072b2", "#d55e00"
"""Blue and vermilion of the palette by Okabe and Ito, which is safe for colour-blind readers."""
PANELS: Mapping[str, Mapping[str, str]] = {
    "a  number of heads": {
        "number of visual heads": "visual",
        "number of language heads": "language",
        "number of synergy heads": "synergy",
        "number of info-redundant heads": "redundant",
    },
    "b  information": {
        "I_vis of visual heads": "I_vis of\nvisual heads",
        "I_lang of language heads": "I_lang of\nlanguage heads",
    },
    "c  mix of synergy heads": {
        "α_vis of synergy heads": "α_vis",
        "I_vis / I_total of synergy heads": "I_vis\n/ I_total",
        "I_lang / I_total of synergy heads": "I_lang\n/ I_total",
    },
}


def heads_by_token(found: Mapping[tuple[str, str], Mapping[str, Compared]]) -> Figure:
    """One row of panels for each distribution and choice of names."""
    figure = figures.new(11.0, 3.0 * len(found) + 0.4)
    widths = [len(bars) for bars in PANELS.values()]
    grid = figure.subplots(len(found), len(PANELS), squeeze=False, gridspec_kw={"width_ratios": widths})
    for (place, compared), row in zip(found.items(), grid, strict=True):
        for (title, bars), axes in zip(PANELS.items(), row, strict=True):
            _bars(axes, [compared[name] for name in bars], list(bars.values()))
            axes.set_title(title, loc="left", fontsize=10)
        first = next(iter(compared.values()))
        row[0].set_ylabel(f"{', '.join(place)}\n{first.correct} / {first.hallucinated} names", fontsize=9)
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _bars(axes: Axes, values: Sequence[Compared], names: Sequence[str]) -> None:
    places, width = np.arange(len(values)), 0.38
    for shift, colour, label, means in (
        (-width / 2, CORRECT, "correct", [v.mean_correct for v in values]),
        (width / 2, HALLUCINATED, "hallucinated", [v.mean_hallucinated for v in values]),
    ):
        axes.bar(places + shift, [m.value for m in means], width, color=colour, label=label)
        axes.errorbar(
            places + shift, [m.value for m in means], yerr=_errors(means), fmt="none", ecolor="#222222", capsize=2.5
        )
    axes.set_xticks(places, names, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _errors(means: Sequence[Interval]) -> np.ndarray:
    """Lengths of the error bars below and above; NaN, which draws nothing, without an interval."""
    below = [m.value - m.low for m in means]
    above = [m.high - m.value for m in means]
    return np.maximum(np.array([below, above]), 0)
