"""Time and memory per token against context and batch: plain and HEAL interleaved in one run, with fitted lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from heal.methods.heal import HEAL
from heal.speed import in_turn, step_s
from heal.speed_arms import Arm, calibrated, memory
from heal.speed_model import Shape, random_model

SHAPE = Shape(hidden=512, intermediate=1024, heads=8, kv_heads=8, positions=1024, visual=576)
"""Modest dimensions: the context dominates, and 32k positions fit the memory."""
LAYERS = 2
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8, 16, 32)
ROUNDS = 3
STEPS = 10
"""Steps of each variant per round; one of them is a refresh."""


@dataclass(frozen=True)
class Point:
    """One context and batch. Times are medians over rounds of the mean per step, refresh included."""

    context: int
    batch: int
    plain_ms: float
    heal_ms: float
    ratio: float
    kv_bytes: int
    """Of the KV cache of all layers."""
    state_bytes: int
    """What HEAL keeps between steps."""
    workspace_bytes: int
    """HEAL's peak within a step."""
    calibrated: float
    """Mean share of heads whose output was changed. The work is the same for the others: all heads are chosen."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Line:
    """milliseconds = slope × axis + offset, by least squares."""

    name: str
    axis: str
    slope: float
    offset: float
    r_squared: float


@dataclass(frozen=True)
class Growth:
    """All points and lines of one run."""

    layers: int
    dtype: str
    threads: int
    shape: Shape
    points: tuple[Point, ...]
    lines: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()
def measure(
    method: HEAL | None = None,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    shape: Shape = SHAPE,
    threads: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> Growth:
    """Every context at batch 1, then every batch at the shortest context.

    All heads are calibrated: which heads of a random model are typed synergy depends on the context, and with none
    HEAL would be the plain model.
    """
    method = replace(method or HEAL(), interval=STEPS, heads="all")
    torch.set_num_threads(threads)
    model = random_model(replace(shape, positions=max(contexts)), LAYERS, torch.float32)
    model.config.get_text_config().max_position_embeddings = 2 * max(contexts)
    sizes = list(dict.fromkeys([*((c, 1) for c in contexts), *((min(contexts), b) for b in batches)]))
    points = []
    for context, batch in sizes:
        progress(f"context {context}, batch {batch}")
        points.append(_point(model, method, replace(shape, positions=context), batch))
    lines = [
        fit(f"{name} by {axis}", axis, *_along(points, axis, f"{name}_ms", min(contexts)))
        for axis in ("context", "batch")
        for name in ("plain", "heal")
    ]
    return Growth(LAYERS, "float32", threads, shape, tuple(points), tuple(lines))


def _along(points: Sequence[Point], axis: str, name: str, shortest: int) -> tuple[list[float], list[float]]:
    chosen = [p for p in points if (p.batch == 1 if axis == "context" else p.context == shortest)]
    return [float(getattr(p, axis)) for p in chosen], [getattr(p, name) for p in chosen]


def fit(name: str, axis: str, x: Sequence[float], y: Sequence[float]) -> Line:
    """A line by least squares. R² is NaN if there is nothing to explain."""
    if len(x) < 2:
        return Line(name, axis, float("nan"), float("nan"), float("nan"))
    slope, offset = np.polyfit(np.asarray(x, dtype=float), np.asarray(y, dtype=float), 1)
    own = np.asarray(y, dtype=float)
    rest = own - (slope * np.asarray(x, dtype=float) + offset)
    spread = float(((own - own.mean()) ** 2).sum())
    share = 1 - float((rest**2).sum()) / spread if spread else float("nan")
    return Line(name, axis, float(slope), float(offset), share)


def _point(model: Any, method: HEAL, shape: Shape, batch: int) -> Point:
    arms = [Arm(model, chosen, shape, batch, name) for name, chosen in (("plain", None), ("heal", method))]
    for arm in arms:
        arm.prefill()
        arm.steps(STEPS)  # warm-up; the refresh is the last step of each round
    rounds = []
    for _ in range(ROUNDS):
        times: dict[str, list[float]] = {arm.name: [] for arm in arms}
        for step in range(STEPS):
            for arm in in_turn(arms, step):
                times[arm.name] += arm.steps(1)
        rounds.append([1e3 * step_s(own) for own in times.values()])
    layers = arms[1].cache.layers
    kept, workspace = memory(arms[1])
    return Point(
        context=shape.positions,
        batch=batch,
        plain_ms=median(plain for plain, _ in rounds),
        heal_ms=median(heal for _, heal in rounds),
        ratio=median(heal / plain for plain, heal in rounds),
        kv_bytes=sum(t.numel() * t.element_size() for layer in layers for t in (layer.keys, layer.values)),
        state_bytes=kept,
        workspace_bytes=workspace,
        calibrated=calibrated(arms[1], len(layers) * shape.heads),
    )
