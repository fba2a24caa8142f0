"""Q-Q plots of the scores that the σ rules judge."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from heal.plots import figure as figures
from heal.studies.normality import Quantiles

COLUMNS = 2


def quantile_plots(found: Mapping[str, Quantiles]) -> Figure:
    """One panel per quantity and distribution: standardised values against normal quantiles."""
    rows = max(1, -(-len(found) // COLUMNS))
    figure = figures.new(4.6 * COLUMNS, 3.9 * rows)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    for (name, own), axes in zip(found.items(), panels, strict=False):
        ends = [own.normal[0], own.normal[-1]]
        axes.plot(ends, ends, color="#777777", linestyle="--", linewidth=1, label="normal")
        axes.fill_between(
            own.normal, own.low, own.high, color="#0072b2", alpha=0.2, linewidth=0, label="middle 90 % of samples"
        )
        axes.plot(own.normal, own.mean, color="#0072b2", marker="o", markersize=3, label="mean of samples")
        axes.set_title(name, fontsize=10)
        axes.set(xlabel="normal quantile", ylabel="standardised value")
        axes.spines[["top", "right"]].set_visible(False)
    if found:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure
