"""docs/results.md: what was measured on the embedded model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heal.bench.summary import Row, Summary
from heal.experiments.comparison import lines, markdown
from heal.experiments.drift import Separation, separations
from heal.experiments.objects import ObjectToken, describe
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


def document(
    runs: Mapping[str, Summary], drifts: Mapping[str, Premise], best: str, images: int, validation: int
) -> str:
    parts = [
        "# Results on the embedded model",
        "",
        "Made by `heal report embedded`. Greedy decoding except beam search; seed 0. In brackets: differences to the",
        "plain model, paired by picture, with * where the 95 % bootstrap interval (2,000 resamples of pictures)",
        "excludes zero. Nothing on this page was chosen on the test split.",
        "",
        "## The premise",
        "",
        f"On {validation} validation pictures a kind, the plain model: does a value tell correct object names from",
        "hallucinated ones? AUC 0.5 is chance; `within` compares names at like places of the answer.",
        "",
    ]
    for distribution, found in drifts.items():
        parts += [f"### {distribution}", "", _separations(found.separations), "", _made_up(found.made_up), ""]
    parts += [
        "## Choices on the validation split",
        "",
        f"{validation} natural pictures. Factor limit, draws and sinks, at α = 0.6:",
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
            f"{images} pictures: {_counted(runs[f'test-{distribution}'])}.",
            "",
            table(runs[f"test-{distribution}"]),
            f"Controls with the settings of {best}:",
            "",
            table(runs[f"controls-{distribution}"]),
        ]
    return "\n".join(parts)


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
