"""docs/results.md: what was measured on the embedded model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heal import strict_json
from heal.atomic_write import atomic_write
from heal.bench.run.environment import weights_fingerprint
from heal.bench.score.bootstrap import Interval
from heal.bench.score.summary import Row, Summary
from heal.bench.tasks.catalogue import current_options
from heal.errors import DataError
from heal.json_values import json_values
from heal.methods import Method, create
from heal.report.plans import chosen_form
from heal.report.stored_results import SUFFIX, Measured, finished, keep, kept
from heal.studies.comparison import lines, markdown
from heal.studies.drift import Separation, separations
from heal.studies.objects import ObjectToken, describe
from heal.vlm import VLM
from heal.world import World
from heal.world.categories import INDEX
from heal.world.statistics import statistics

MOST = 10
DRAWINGS = {
    "published-natural": ("quality-cost.svg", "Quality against cost"),
    "tuning": ("trade-off.svg", "What the strength of each method buys and costs"),
}
"""File and title of the drawing that stands below the table of a run."""


@dataclass(frozen=True)
class Premise:
    """The plain model's own drift on scenes of one kind, and what it makes up."""

    weights: str
    """Which model."""
    images: int
    separations: Sequence[Separation]
    made_up: Sequence[tuple[str, int, float, float]]
    """Object, times, its chance given the rest of the picture, its chance anywhere."""


def premise(vlm: VLM, split: str, distribution: str, images: int) -> Premise:
    world = World(0, split, distribution)  # type: ignore[arg-type]
    views = [world.scene(i) for i in range(images)]
    tokens = [t for found in describe(vlm, views, batch=32) for t in found]
    return Premise(weights_fingerprint(vlm.model), images, separations(tokens), made_up(tokens, world))


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
    """Whatever has been measured: the document tells what is there and names what is not."""

    runs: Mapping[str, Measured]
    drifts: Mapping[str, Premise]

    @property
    def best(self) -> str:
        """The form of HEAL that was chosen on the validation split."""
        return chosen_form(self.runs["choice"].summary) if "choice" in self.runs else ""


def gather(folder: Path, figures: Path, weights: str) -> Findings:
    """Every finished run in `folder`, whose figures are now kept in `figures`, and what was kept there of others.

    Only what is about the model with these weights: figures of an earlier one are left out, and overwritten once
    they have been measured again.
    """
    runs: dict[str, Measured] = {}
    for name in RUNS:
        fresh = finished(folder / name)
        if fresh is not None and fresh.weights == weights:
            keep(fresh, figures / f"{name}{SUFFIX}")
        there = kept(figures / f"{name}{SUFFIX}")
        if there is not None and there.weights == weights:
            runs[name] = there
    drifts = {}
    for distribution in ("natural", "counter"):
        path = premise_file(figures, distribution)
        if path.exists() and (drift := read_premise(path)).weights == weights:
            drifts[distribution] = drift
    return Findings(runs, drifts)


def premise_file(figures: Path, distribution: str) -> Path:
    return figures / f"premise-{distribution}{SUFFIX}"


def read_premise(path: Path) -> Premise:
    record = strict_json.read(path)
    nan: Any = math.nan
    try:
        rows = [Separation(**{k: nan if v is None else v for k, v in row.items()}) for row in record["separations"]]
        return Premise(record["weights"], record["images"], rows, [(a, b, c, d) for a, b, c, d in record["made_up"]])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not what a report keeps ({error}): delete it and measure again") from error


def write_premise(found: Premise, path: Path) -> None:
    atomic_write(path, json.dumps(json_values(asdict(found)), ensure_ascii=False, indent=1) + "\n")


def document(found: Findings) -> str:
    parts = [
        "# Results on the embedded model",
        "",
        "Made by `heal report embedded`. Greedy decoding except beam search; seed 0. In brackets: differences to the",
        "plain model, paired by picture, with * where the 95 % bootstrap interval (2,000 resamples of pictures)",
        "excludes zero. Nothing on this page was chosen on the test split. MME is the total of existence, count,",
        "position and colour (at most 800). Every figure with its interval is in [results](results/). Times are",
        "ratios to the plain model in the same batches; in a model this small every operation weighs more than in a",
        "real one (see [benchmarks](../benchmarks/README.md) for those). Memory is the whole process's; in runs that",
        "read each prompt once for all methods (`prefix_cache` in their configuration) what is kept of it is in there.",
        "",
    ]
    missing = [name for name in RUNS if name not in found.runs]
    if missing:
        parts += [f"Not measured yet: {', '.join(missing)}.", ""]
    parts += _seeing(found)
    parts += _premise(found) if found.drifts else []
    for title, sections in SECTIONS.items():
        there = [(name, intro) for name, intro in sections if name in found.runs]
        if there:
            parts += [f"## {title}", ""]
        for name, intro in there:
            run = found.runs[name]
            text = intro.format(images=_images(run), answers=_counted(run), best=found.best)
            parts += [text, "", *(_settings(run) if name == "tuned-natural" else []), table(run.summary)]
            if name in DRAWINGS:
                file, caption = DRAWINGS[name]
                parts += [f"![{caption}](results/{file})", ""]
    return "\n".join(parts)


SECTIONS: Mapping[str, Sequence[tuple[str, str]]] = {
    "Choices on the validation split": (
        ("safety", "Factor limit, draws and sinks at α = 0.6, {images} natural pictures:"),
        ("choice", "The equilibrium, {images} natural pictures; by POPE F1 plus object F1: **{best}**."),
    ),
    "Test split, natural": (
        ("test-natural", "{images} pictures: {answers}."),
        ("mme-natural", "MME, {images} pictures for each of its four subtasks: {answers}."),
        ("controls-natural", "Controls with the settings of {best}, {images} pictures:"),
    ),
    "Test split, counter": (
        ("test-counter", "{images} pictures: {answers}."),
        ("mme-counter", "MME, {images} pictures for each of its four subtasks: {answers}."),
        ("controls-counter", "Controls with the settings of {best}, {images} pictures:"),
    ),
    "All methods": (
        ("published-natural", "With published defaults, {images} natural test pictures: {answers}."),
        (
            "tuned-natural",
            "With the best of four settings of each on the validation split, {images} test pictures. HEAL is there "
            "twice, and its one-sided form comes from `choice`, a search on the same validation pictures:",
        ),
        ("tuning", "All settings, {images} validation pictures, four of each method:"),
    ),
}
"""The runs of a report, in the order of the document, with what is said of each."""

RUNS = tuple(name for sections in SECTIONS.values() for name, _ in sections)


def _premise(found: Findings) -> list[str]:
    first = next(iter(found.drifts.values()))
    parts = [
        "## The premise",
        "",
        f"On {first.images} validation pictures a kind, the plain model: does a value tell correct object names",
        "from hallucinated ones? AUC 0.5 is chance; `within` compares names at like places of the answer.",
        "",
    ]
    for distribution, drift in found.drifts.items():
        parts += [f"### {distribution}", "", _separations(drift.separations), "", _made_up(drift.made_up), ""]
    return parts


SEEN = {
    "test": ("mini-pope", ("random", "popular", "adversarial"), "accuracy", "POPE, {} questions"),
    "mme": ("mini-mme", ("existence", "count", "position", "color"), "accuracy", "MME, {} questions"),
}
"""What the plain model can see, by the run that tells."""


def _seeing(found: Findings) -> list[str]:
    """The plain model by kinds of questions."""
    out = []
    for run, (task, kinds, figure, title) in SEEN.items():
        for kind in kinds:
            cells = []
            for distribution in ("natural", "counter"):
                measured = found.runs.get(f"{run}-{distribution}")
                row = measured.summary.row(task, "plain") if measured else None
                cells.append(_interval(row.figures[f"{kind}/{figure}"]) if row else "–")
            if any(cell != "–" for cell in cells):
                out.append(f"| {title.format(kind)} | {' | '.join(cells)} |")
    if not out:
        return []
    head = "Accuracy of the plain model on the test split, in per cent (95 % interval):"
    return ["## What it sees", "", head, "", "| | natural | counter |", "|---|---|---|", *out, ""]


def _interval(found: Interval) -> str:
    return f"{found.value:.1f} ({found.low:.1f}–{found.high:.1f})"


def _images(run: Measured) -> int:
    task = next(iter(run.configuration["tasks"].values()))
    return current_options(task["name"], task["options"])["count"]


def _settings(run: Measured) -> list[str]:
    """What was chosen for every method, as on the command line."""
    methods = {name: m for name, m in run.configuration["methods"].items() if m is not None}
    return [*(f"- {name}: `{_written(create(m['name'], **_options(m)))}`" for name, m in methods.items()), ""]


def _options(method: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in method["options"].items()}


def _written(method: Method) -> str:
    """As on the command line, only what differs from the defaults."""
    usual = type(method)().options()
    changed = [
        f"{k}={'+'.join(map(str, v)) if isinstance(v, list) else v}"
        for k, v in method.options().items()
        if v != usual[k]
    ]
    return f"{method.name}:{','.join(changed)}" if changed else method.name


def table(summary: Summary) -> str:
    return markdown(lines(summary))


def _counted(run: Measured) -> str:
    first: dict[str, Row] = {}
    for row in run.summary.rows:
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
