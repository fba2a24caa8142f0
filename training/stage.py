"""A training stage: optimiser, log and resumable state."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optimiser
import torch
from torch import Tensor, nn


class Log:
    """Write a JSON line every `every` steps, to a file and the terminal."""

    def __init__(self, path: Path, total: int, every: int = 50) -> None:
        self.path, self.total, self.every = path, total, every
        self.start = time.time()
        self.values: list[dict[str, float]] = []

    def __call__(self, step: int, **values: float) -> None:
        self.values.append(values)
        if (step + 1) % self.every and step + 1 != self.total:
            return
        means = {k: float(np.mean([v[k] for v in self.values])) for k in values}
        self.values.clear()
        line = {
            "step": step + 1,
            **{k: round(v, 4) for k, v in means.items()},
            "seconds": round(time.time() - self.start),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{self.path.stem} {line}", flush=True)


def save(state: object, path: Path) -> None:
    """Write atomically."""
    torch.save(state, part := path.with_suffix(".part"))
    os.replace(part, path)


@dataclass(frozen=True)
class Stage:
    """A training stage: trained parts, number of steps and output folder."""

    name: str
    parts: list[nn.Module]
    rate: float
    steps: int
    out: Path
    keep: int = 0
    """Save the weights every N steps; 0: only at the end."""

    @property
    def done(self) -> Path:
        return self.out / f"{self.name}.pt"

    def weights(self) -> list[dict[str, Tensor]]:
        return [part.state_dict() for part in self.parts]

    def load(self, weights: list[dict[str, Tensor]]) -> None:
        for part, state in zip(self.parts, weights, strict=True):
            part.load_state_dict(state)


def optimise(stage: Stage, loss_at: Callable[[int], tuple[Tensor, dict[str, float]]], every: int = 100) -> None:
    """Train with warm-up and cosine decay. `loss_at(step)` must depend only on the step and the weights. It may run
    the backward pass itself, in parts."""
    parameters = [p for part in stage.parts for p in part.parameters()]
    optimisers = optimiser.optimisers(stage.parts, stage.rate)
    running, first = stage.out / f"{stage.name}.state", 0
    if running.exists():
        state = torch.load(running)
        first = state["step"]
        stage.load(state["weights"])
        for one, kept in zip(optimisers, state["optimisers"], strict=True):
            one.load_state_dict(kept)
    log = Log(stage.out / f"{stage.name}.jsonl", stage.steps)
    warm = max(1, min(100, stage.steps // 10))
    for step in range(first, stage.steps):
        share = min(1.0, (step + 1) / warm) * (0.05 + 0.95 * (0.5 + 0.5 * np.cos(np.pi * step / stage.steps)))
        for group in (g for one in optimisers for g in one.param_groups):
            group["lr"] = float(stage.rate * share)
        for p in parameters:
            p.grad = None
        loss, values = loss_at(step)
        if loss.requires_grad:
            loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for one in optimisers:
            one.step()
        log(step, loss=loss.item(), **values)
        if (step + 1) % every == 0:
            kept = [one.state_dict() for one in optimisers]
            save({"step": step + 1, "weights": stage.weights(), "optimisers": kept}, running)
        if stage.keep and (step + 1) % stage.keep == 0:
            save(stage.weights(), stage.out / f"{stage.name}-{step + 1}.pt")
    save(stage.weights(), stage.done)
    running.unlink(missing_ok=True)
