"""How well head types from few draws, and from expected noise, agree with those from many averaged draws.

`python benchmarks/agreement.py`: the embedded model on scenes of its validation split, and untrained tiny LLaVAs,
each with its queries as they are and multiplied, which makes attention sharp. Stage 1 is left out: it finds no
redundant head in models with so few heads per layer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heal import VLM, Method
from heal.analysis.counterfactual import Attended, noise_partials
from heal.analysis.expected import StepTables, expected_scores
from heal.analysis.information import HeadScores, scores_from_partials
from heal.analysis.lognormal import NodeTables
from heal.analysis.moments import Moments
from heal.analysis.noise import Noise
from heal.analysis.taxonomy import classify
from heal.atomic_write import atomic_write
from heal.bench.score.bootstrap import percentile_interval
from heal.engine.attention_call import AttentionCall
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.studies.objects import PROMPT
from heal.world import World

DRAWS = (1, 4, 16, 64, 256)
EVERY = 13
"""Steps between two measurements."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Capture(Method):
    """Keeps what each layer attends to at some steps, and changes nothing."""

    steps: list[list[Attended]] = field(default_factory=list)

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        return _CaptureRuntime(self.steps)


class _CaptureRuntime(Runtime[Any]):
    changes_output = False

    def __init__(self, steps: list[list[Attended]]) -> None:
        self.steps = steps

    def attention(self, generation: Generation[Any], call: AttentionCall, plain: Callable[[], Tensor]) -> Tensor:
        if generation.phase == "decode" and generation.step % EVERY == 5:
            if call.layer == 0:
                self.steps.append([])
            at = call.newest
            self.steps[-1].append(replace(at, key=at.key.clone(), value=at.value.clone()))
        return plain()


def captured(vlm: VLM, images: Sequence[Any], tokens: int) -> list[list[Attended]]:
    """[steps][layers] of a greedy description of each image."""
    method = Capture()
    for image in images:
        vlm.generate(image, PROMPT, method=method, max_new_tokens=tokens, do_sample=False)
    return method.steps


def drawn(at: Attended, moments: Moments, seeds: range) -> Tensor:
    """Visual, language and total information for each seed, [seeds, three, rows, heads]."""
    found = []
    for seed in seeds:
        fake = noise_partials(at, moments, "gaussian", Noise(seed, CPU))
        scores = scores_from_partials(at.split(), fake)
        found.append(torch.stack([scores.visual, scores.language, scores.total]))
    return torch.stack(found)


def types_of(layers: Sequence[Tensor]) -> Tensor:
    """Head types from [three, rows, heads] of every layer."""
    scores = HeadScores(*torch.stack(list(layers), dim=2).float())
    return classify(scores, torch.zeros_like(scores.total, dtype=torch.bool)).types


def agreements(layers: Sequence[Attended], tables: NodeTables, many: int) -> dict[str, float]:
    """The share of heads whose type equals that from `many` draws, at one step."""
    moments = [Moments.of(at.key, at.value, at.regions) for at in layers]
    pairs = list(zip(layers, moments, strict=True))
    truth = types_of([drawn(at, m, range(many)).mean(0) for at, m in pairs])
    others = [drawn(at, m, range(many, many + max(DRAWS))) for at, m in pairs]
    found = {f"{n} draws": types_of([draws[:n].mean(0) for draws in others]) for n in DRAWS}
    found["expected"] = types_of(
        [
            expected_scores(at, m, StepTables.of(at.regions, at.scale, tables)).flatten(1, 2).permute(2, 0, 1)
            for at, m in pairs
        ]
    )
    return {name: float((types == truth).float().mean()) for name, types in found.items()}


def measure(steps: Sequence[Sequence[Attended]], factor: float, many: int) -> dict[str, dict[str, float]]:
    tables = NodeTables(CPU)
    sharp = [[replace(at, query=at.query * factor) for at in layers] for layers in steps]
    rows = [agreements(layers, tables, many) for layers in sharp]
    return {name: summary([row[name] for row in rows]) for name in rows[0]}


def summary(values: Sequence[float]) -> dict[str, float]:
    """The mean over steps and its 95 % bootstrap interval."""
    picks = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    low, high = percentile_interval(np.array(values)[picks].mean(1))
    return {"mean": float(np.mean(values)), "low": low, "high": high, "steps": len(values)}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=6, help="0 leaves the embedded model out")
    parser.add_argument("--draws", type=int, default=256, help="averaged draws to agree with")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "agreement.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worlds = [World(0, "validation", kind) for kind in ("natural", "counter")]
    images = [world.scene(i).image for world in worlds for i in range(options.scenes)]
    cases: dict[str, tuple[list[list[Attended]], int]] = {}
    if images:
        embedded = captured(VLM.embedded(), images, 70)
        cases |= {f"embedded, queries × {factor}": (embedded, factor) for factor in (1, 5, 30)}
    for seed in (0, 1):
        tiny = captured(VLM.random(seed), [worlds[0].scene(i).image for i in range(2)], 70)
        cases |= {f"untrained LLaVA {seed}, queries × {factor}": (tiny, factor) for factor in (5, 10, 30)}
    results = {}
    for name, (steps, factor) in cases.items():
        results[name] = measure(steps, factor, options.draws)
        print(f"| {name} | " + " | ".join(map(cell, results[name].values())) + " |", flush=True)
    atomic_write(options.out, json.dumps(results, indent=1) + "\n")


def cell(row: dict[str, float]) -> str:
    return f"{100 * row['mean']:.1f} ({100 * row['low']:.1f} – {100 * row['high']:.1f})"


if __name__ == "__main__":
    main()
