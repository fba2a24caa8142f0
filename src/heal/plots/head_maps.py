"""Figure 2 of the paper: maps of head types, their numbers along the answer, a scatter plot, and transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import Interval
from heal.plots import figure as figures
from heal.studies.head_maps import TYPES, ChosenToken, Cloud
from heal.studies.token_kinds import TokenKind

COLOURS: Mapping[HeadType, str] = {
    HeadType.CAUSAL_REDUNDANT: "#8c8c8c",
    HeadType.INFO_REDUNDANT: "#d4d4d4",
    HeadType.VISUAL: "#009e73",
    HeadType.LANGUAGE: "#f0c230",
    HeadType.SYNERGY: "#0072b2",
}
"""Of the palette by Okabe and Ito, which is safe for colour-blind readers; the yellow is a little darker."""
SEEN = 0.1
"""A type with fewer heads than this at every step is not drawn."""
MARKERS: Mapping[HeadType, str] = dict(zip(TYPES, ("x", "+", "^", "s", "o"), strict=True))


def maps(chosen: Sequence[ChosenToken]) -> Figure:
    """Layer × head maps of a few tokens, side by side."""
    layers, heads = chosen[0].types.shape if chosen else (1, 1)
    size = max(1.8, min(4.0, 0.2 * heads))
    figure = figures.new(max(4.0, len(chosen) * (size + 0.5)), size * layers / heads + 1.5)
    panels = figure.subplots(1, max(1, len(chosen)), squeeze=False, sharey=True)[0]
    for token, axes in zip(chosen, panels, strict=False):
        _map(axes, token.types)
        axes.set_title(token.label, fontsize=9)
        axes.set_xlabel("head")
    panels[0].set_ylabel("layer")
    seen = [kind for kind in TYPES if any((token.types == int(kind)).any() for token in chosen)]
    _legend(figure, seen)
    return figure


def _map(axes: Axes, types: np.ndarray) -> None:
    layers, heads = types.shape
    axes.pcolormesh(
        np.arange(heads + 1) - 0.5,
        np.arange(layers + 1) - 0.5,
        types,
        cmap=ListedColormap([COLOURS[kind] for kind in TYPES]),
        norm=BoundaryNorm(np.arange(len(TYPES) + 1) - 0.5, len(TYPES)),
        edgecolors="white",
        linewidth=1.0 if heads <= 16 else 0.3,
    )
    axes.set_aspect("equal")
    axes.set_ylim(layers - 0.5, -0.5)
    axes.set_xticks(range(0, heads, max(1, heads // 8)))
    axes.set_yticks(range(0, layers, max(1, layers // 8)))


def _legend(figure: Figure, kinds: Sequence[HeadType]) -> None:
    handles = [Patch(facecolor=COLOURS[kind], edgecolor="#888888", label=kind.label) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, len(handles)), frameon=False)


def along(found: Mapping[str, Mapping[HeadType, Sequence[Interval]]]) -> Figure:
    """The number of heads of each type at every step, one panel per distribution."""
    figure = figures.new(5.4 * max(1, len(found)), 3.6)
    panels = figure.subplots(1, max(1, len(found)), squeeze=False, sharey=True)[0]
    seen: dict[HeadType, None] = {}
    for (name, lines), axes in zip(found.items(), panels, strict=True):
        for kind, means in lines.items():
            if max((mean.value for mean in means), default=0) > SEEN:
                seen[kind] = None
                steps = np.arange(len(means))
                axes.plot(steps, [m.value for m in means], color=COLOURS[kind], linewidth=1.6)
                low, high = [m.low for m in means], [m.high for m in means]
                axes.fill_between(steps, low, high, color=COLOURS[kind], alpha=0.25, linewidth=0)
        axes.set(title=name, xlabel="step of the answer", ylim=(0, None))
        axes.grid(axis="y", color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean number of heads")
    _legend(figure, [kind for kind in TYPES if kind in seen])
    return figure


def scatter(cloud: Cloud) -> Figure:
    """Visual, language and synergy information of heads at object names."""
    figure = figures.new(6.6, 5.4)
    axes: Any = figure.add_subplot(projection="3d")
    for kind in TYPES:
        own = cloud.points[cloud.types == int(kind)]
        if len(own):
            label = f"{kind.label} ({len(own)})"
            axes.scatter(
                own[:, 0], own[:, 1], own[:, 2], s=10, c=COLOURS[kind], marker=MARKERS[kind], alpha=0.6, label=label
            )
    axes.set(xlabel="visual", ylabel="language", zlabel="synergy")
    axes.view_init(elev=22, azim=-50)
    axes.set_box_aspect(None, zoom=0.95)
    if len(cloud.types):
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def transitions(found: Mapping[str, Mapping[TokenKind, np.ndarray]]) -> Figure:
    """One matrix per distribution and kind of token, in percent of the row."""
    kinds = list(next(iter(found.values())))
    figure = figures.new(3.5 * len(kinds), 3.3 * len(found) + 0.2)
    grid = figure.subplots(len(found), len(kinds), squeeze=False, sharex=True, sharey=True)
    used = _used(found)
    if not used:
        return figure
    labels = [TYPES[at].label.replace("-redundant", "-\nredundant") for at in used]
    for (name, by_kind), row in zip(found.items(), grid, strict=True):
        for (kind, matrix), axes in zip(by_kind.items(), row, strict=True):
            _matrix(axes, matrix[np.ix_(used, used)], labels)
            axes.set_title(f"{name}: {kind.label}", fontsize=10)
        row[0].set_ylabel("type before")
    for axes in grid[-1]:
        axes.set_xlabel("type at the token")
    return figure


def _used(found: Mapping[str, Mapping[TokenKind, np.ndarray]]) -> list[int]:
    """The types that occur anywhere."""
    every = np.stack([matrix for by_kind in found.values() for matrix in by_kind.values()])
    before = ~np.isnan(every).all((0, 2))
    after = (np.nan_to_num(every) > 0).any((0, 1))
    return np.flatnonzero(before | after).tolist()


def _matrix(axes: Axes, percent: np.ndarray, labels: Sequence[str]) -> None:
    axes.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    for (before, after), value in np.ndenumerate(percent):
        shown = "" if np.isnan(value) else f"{value:.1f}"
        axes.text(after, before, shown, ha="center", va="center", color="white" if value > 60 else "#222222")
