"""The visual share of the synergy heads along an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from heal.errors import ConfigError
from heal.plots import figure as figures
from heal.trace import Trace

LINES = ("#555555", "#3b74c9", "#8e44ad", "#16806c")
WRONG = "#cc2f2f"


@dataclass(frozen=True)
class Marked:
    """A trace with the steps of correct and hallucinated object names."""

    trace: Trace
    correct: Sequence[int] = field(default=())
    hallucinated: Sequence[int] = field(default=())


def mix_over_tokens(answers: Mapping[str, Marked | Trace], equilibrium: float | None = None) -> Figure:
    """Plot the mean α_vis of the synergy heads per token, one panel per answer; hallucinated objects are red."""
    marked_answers = as_marked(answers)
    figure = figures.new(11.0, 2.7 * len(answers))
    panels = figure.subplots(len(answers), 1, squeeze=False)[:, 0]
    for (name, marked), axes, colour in zip(marked_answers.items(), panels, _cycle(len(answers)), strict=True):
        share, steps = marked.trace.mean_alpha(), np.arange(marked.trace.steps)
        axes.plot(steps, share, color=colour, linewidth=1.3)
        for at, style, size in ((marked.correct, "o", 22), (marked.hallucinated, "X", 60)):
            places = [s for s in at if s < len(share)]
            wrong = at is marked.hallucinated
            axes.scatter(places, share[places], marker=style, s=size, color=WRONG if wrong else colour, zorder=3)
        if equilibrium is not None:
            axes.axhline(equilibrium, color="#999999", linestyle=":", linewidth=1)
        axes.set_xticks(steps, [token.strip() for token in marked.trace.tokens], rotation=90, fontsize=6)
        for step in marked.hallucinated:
            if step < len(share):
                axes.get_xticklabels()[step].set_color(WRONG)
        axes.set(title=name, ylabel="visual share", xlim=(-0.5, max(len(share) - 0.5, 0.5)), ylim=(0, 1))
    return figure


def as_marked(answers: object) -> dict[str, Marked]:
    """Validate the answers. A trace alone is an answer without marks."""
    if not isinstance(answers, Mapping) or not answers:
        raise ConfigError("mix_over_tokens needs {name: trace, …} or {name: Marked(trace, …), …}, not empty")
    found = {str(name): Marked(value) if isinstance(value, Trace) else value for name, value in answers.items()}
    for name, value in found.items():
        if not isinstance(value, Marked) or not isinstance(value.trace, Trace):
            raise ConfigError(f"the answer {name!r} must be a Trace or Marked(trace, …), not {type(value).__name__}")
        if any(step < 0 for step in (*value.correct, *value.hallucinated)):
            raise ConfigError(f"the answer {name!r} has a mark at a step below 0")
    return found


def _cycle(count: int) -> list[str]:
    return [LINES[i % len(LINES)] for i in range(count)]
