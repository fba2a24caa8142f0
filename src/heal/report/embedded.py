"""docs/results.md: what was measured on the embedded model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heal.bench.summary import Row, Summary
from heal.experiments.comparison import lines, markdown
from heal.experiments.drift import Separation, separations
from heal.experiments.objects import ObjectToken, describe
from heal.methods import Method
from heal.vlm import VLM
from heal.world import World
from heal.world.categories import INDEX
from heal.world.statistics import statistics

MOST = 10


@dataclass(frozen=True)
class Premise:
    """The plain model's own drift on scenes of one kind, and what it makes up."""

    images: int
    separations: Sequence[Separation]
    made_up: Sequence[tuple[str, int, float, float]]
    """Object, times, its chance given the rest of the picture, its chance anywhere."""


def premise(vlm: VLM, split: str, distribution: str, images: int) -> Premise:
    world = World(0, split, distribution)  # type: ignore[arg-type]
    views = [world.scene(i) for i in range(images)]
    tokens = [t for found in describe(vlm, views, batch=32) for t in found]
    return Premise(images, separations(tokens), made_up(tokens, world))


def made_up(tokens: Sequence[ObjectToken], world: World) -> list[tuple[str, int, float, float]]:
    """The objects made up most often: do they come from what usually goes together?"""
    table = statistics()
    anywhere = table.weights @ table.chances
    chances: dict[str, list[float]] = {}
    for token in tokens:
        if token.first and not token.correct:
            present = [INDEX[name] for name in world.scene(token.picture).objects]
            chances.setdefault(token.category, []).append(float(table.given(present)[INDEX[token.category]]))
    often = sorted(chances.items(), key=lambda pair: -len(pair[1]))[:MOST]
    return [(name, len(found), float(np.mean(found)), float(anywhere[INDEX[name]])) for name, found in often]


@dataclass(frozen=True)
class Findings:
    """Everything the document tells."""

    runs: Mapping[str, Summary]
    drifts: Mapping[str, Premise]
    best: str
    """The form of HEAL that was chosen on the validation split."""
    settings: Mapping[str, Method]
    """What was chosen there for every method."""
    images: int
    fewer: int
    validation: int


def document(found: Findings) -> str:
    runs, best = found.runs, found.best
    parts = [
        "# Results on the embedded model",
        "",
        "Made by `heal report embedded`. Greedy decoding except beam search; seed 0. In brackets: differences to the",
        "plain model, paired by picture, with * where the 95 % bootstrap interval (2,000 resamples of pictures)",
        "excludes zero. Nothing on this page was chosen on the test split. MME is the total of existence, count,",
        "position and colour (at most 800). Intervals of every figure: `scores.json` of the run folders.",
        "",
        "## The premise",
        "",
        f"On {found.validation} validation pictures a kind, the plain model: does a value tell correct object names",
        "from hallucinated ones? AUC 0.5 is chance; `within` compares names at like places of the answer.",
        "",
    ]
    for distribution, drift in found.drifts.items():
        parts += [f"### {distribution}", "", _separations(drift.separations), "", _made_up(drift.made_up), ""]
    parts += [
        "## Choices on the validation split",
        "",
        f"{found.validation} natural pictures. Factor limit, draws and sinks, at α = 0.6:",
        "",
        table(runs["safety"]),
        f"The equilibrium, chosen by POPE F1 plus object F1: **{best}**.",
        "",
        table(runs["choice"]),
    ]
    for distribution in ("natural", "counter"):
        parts += [
            f"## Test split, {distribution}",
            "",
            f"{found.images} pictures: {_counted(runs[f'test-{distribution}'])}.",
            "",
            table(runs[f"test-{distribution}"]),
            f"Controls with the settings of {best}, {found.fewer} pictures:",
            "",
            table(runs[f"controls-{distribution}"]),
        ]
    return "\n".join([*parts, *_methods(found)])


def _methods(found: Findings) -> list[str]:
    chosen = [f"- {name}: `{_written(method)}`" for name, method in found.settings.items()]
    return [
        "## All methods",
        "",
        f"{found.fewer} natural test pictures: {_counted(found.runs['published-natural'])}. With published defaults:",
        "",
        table(found.runs["published-natural"]),
        f"With the best of four settings of each method on {found.validation} validation pictures, by POPE F1 plus",
        "object F1:",
        "",
        *chosen,
        "",
        table(found.runs["tuned-natural"]),
        "All settings on the validation split:",
        "",
        table(found.runs["tuning"]),
    ]


def _written(method: Method) -> str:
    """As on the command line, only what differs from the defaults."""
    usual = type(method)().options()
    changed = [f"{k}={v}" for k, v in method.options().items() if v != usual[k]]
    return f"{method.name}:{','.join(changed)}" if changed else method.name


def table(summary: Summary) -> str:
    return markdown(lines(summary))


def _counted(summary: Summary) -> str:
    first: dict[str, Row] = {}
    for row in summary.rows:
        first.setdefault(row.task, row)
    return ", ".join(f"{row.answered} answers to {task}" for task, row in first.items())


def _separations(rows: Sequence[Separation]) -> str:
    out = [
        "| value | mean at correct names | at hallucinated ones | AUC (95 %) | within |",
        "|---|---|---|---|---|",
    ]
    out += [
        f"| {r.value} | {r.mean_correct:.3f} ({r.correct}) | {r.mean_hallucinated:.3f} ({r.hallucinated}) | "
        f"{r.auc:.3f} ({r.low:.3f}–{r.high:.3f}) | {r.within:.3f} |"
        for r in rows
    ]
    return "\n".join(out)


def _made_up(rows: Sequence[tuple[str, int, float, float]]) -> str:
    out = ["| made up | times | chance given the rest | chance anywhere |", "|---|---|---|---|"]
    out += [f"| {name} | {times} | {given:.2f} | {anywhere:.2f} |" for name, times, given, anywhere in rows]
    return "\n".join(out)
