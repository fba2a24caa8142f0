"""Figure 8 of the paper: agreement of head types with those of the refresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures
from heal.studies.within_interval import Later

LINES = (("agreement", "same type", "#0072b2", "o"), ("kept", "synergy heads that stay", "#009e73", "s"))
UNRELATED = "#777777"


def within_interval(found: Mapping[str, Sequence[Later]]) -> Figure:
    """One panel per distribution."""
    figure = figures.new(5.2 * max(1, len(found)), 3.6)
    panels = figure.subplots(1, max(1, len(found)), squeeze=False, sharey=True)[0]
    for (distribution, every), axes in zip(found.items(), panels, strict=True):
        some = every[:-1]  # without the mean over the whole interval
        for name, label, colour, marker in LINES:
            _line(axes, some, [getattr(later, name) for later in some], label, colour, marker)
        _line(axes, some, [later.unrelated for later in some], "another image's answer", UNRELATED, "^")
        axes.set(title=distribution, xlabel="steps after the refresh")
        axes.grid(axis="y", color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share of heads")
    panels[0].set_ylim(max(0.0, panels[0].get_ylim()[0] - 0.1), 1.0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _line(
    axes: Axes, some: Sequence[Later], values: Sequence[Interval], label: str, colour: str, marker: str
) -> None:
    steps = [int(later.steps) for later in some]
    axes.plot(steps, [v.value for v in values], color=colour, marker=marker, markersize=4, label=label)
    axes.fill_between(steps, [v.low for v in values], [v.high for v in values], color=colour, alpha=0.2, linewidth=0)
    axes.set_xticks(steps)
