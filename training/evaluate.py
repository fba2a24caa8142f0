"""Evaluate a checkpoint: scores, origin of hallucinations, and whether the premise of the paper holds.

    python training/evaluate.py RUN [--weights joint-600.pt] [--images 200] [--split validation]

RUN is the folder of train.py; results are appended to RUN/scores.jsonl. Only the plain model is measured, so that the
choice of the checkpoint does not favour a method.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import model as architecture
import numpy as np
import torch
import train

from heal import VLM
from heal.bench.tasks.base import Task, figures, unit_counts
from heal.bench.tasks.miniature import MiniChair, MiniMme, MiniPope
from heal.report.document import frequent_hallucinations
from heal.studies.drift import separations
from heal.studies.objects import describe
from heal.world import World


def load(run: Path, weights: str) -> VLM:
    config = train.Config(**json.loads((run / "config.json").read_text()))
    tokenizer = train.tokenizer_of(config)
    net = architecture.build(
        tokenizer, config.hidden, config.layers, config.heads, config.kv_heads, config.vision_hidden
    )
    for name, file in (("vision", "vision.pt"), ("joint", weights)):
        train.stage_of(name, net, config, run).load(torch.load(run / file))
    return VLM(net.eval(), architecture.processor(tokenizer), f"{run.name}/{weights}")


def answers(vlm: VLM, task: Task, batch: int = 32) -> dict[str, str]:
    samples = sorted(task.samples(), key=lambda s: len(s.prompt))
    found: dict[str, str] = {}
    for start in range(0, len(samples), batch):
        some = samples[start : start + batch]
        out = vlm.generate(
            [s.image() for s in some], [s.prompt for s in some], max_new_tokens=task.max_new_tokens, do_sample=False
        )
        found |= {s.id: answer.text for s, answer in zip(some, out, strict=True)}
    return found


def scores(task: Task, texts: dict[str, str]) -> dict[str, float]:
    parses = {s.id: task.parse(s, texts[s.id]) for s in task.samples()}
    return figures(task, unit_counts(task, task.samples(), parses).values())


def hallucinated(tokens: list[Any], world: World) -> list[dict[str, Any]]:
    """The most frequent hallucinations and their probability given the other objects."""
    return [
        {"object": name, "times": times, "given_the_rest": round(given, 3), "anywhere": round(anywhere, 3)}
        for name, times, given, anywhere in frequent_hallucinations(tokens, world)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--weights", default="joint.pt")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--split", default="validation")
    parser.add_argument("--only", choices=("pope", "chair", "mme", "drift"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    vlm = load(options.run, options.weights)
    start = time.time()

    def say(**found: Any) -> None:
        line = {"weights": options.weights, "split": options.split, "images": options.images, **found}
        with (options.run / "scores.jsonl").open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(json.dumps(found, ensure_ascii=False), flush=True)

    for distribution in ("natural", "counter"):
        shared = {"count": options.images, "distribution": distribution, "split": options.split}
        tasks: list[Task] = [MiniPope(**shared), MiniChair(**shared), MiniMme(**shared)]
        for task in tasks:
            if options.only not in (None, task.name.removeprefix("mini-")):
                continue
            texts = answers(vlm, task)
            found = {k: round(v, 3) for k, v in scores(task, texts).items() if not np.isnan(v)}
            say(task=task.name, distribution=distribution, **found)
            if isinstance(task, MiniChair):
                print("\n".join(list(texts.values())[:2]), flush=True)
        if options.only in (None, "drift"):
            world = World(0, options.split, distribution)
            tokens = [
                t for ts in describe(vlm, (world.scene(i) for i in range(options.images)), batch=32) for t in ts
            ]
            for row in separations(tokens, resamples=200):
                say(distribution=distribution, **vars(row))
            say(distribution=distribution, hallucinated=hallucinated(tokens, world))
    print(f"{time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
