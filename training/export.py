"""Export a checkpoint to the package, with its model card.

    python training/export.py RUN [--weights joint.pt] [--to src/heal/data/model]

The card is generated from the configuration, logs and scores of the run (training/evaluate.py). The equilibrium is
measured on the validation split and stored with the model.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import evaluate
import torch

from heal.methods.equilibrium import FILE
from heal.studies.equilibrium import measure_equilibrium
from heal.world import World

HOME = Path(__file__).parents[1] / "src" / "heal" / "data" / "model"
TOLD = (
    "layers",
    "heads",
    "kv_heads",
    "seed",
    "pictures",
    "looking",
    "guessing",
    "guesses",
    "descriptions",
    "existence",
    "details",
)  # on the card
CARD = Path(__file__).parent / "card.md"


def stages(run: Path) -> str:
    rows = []
    for name in evaluate.train.STAGES:
        path = run / f"{name}.jsonl"
        if path.exists():
            last = json.loads(path.read_text().splitlines()[-1])
            rows.append(f"| {name} | {last['step']} | {last['loss']} | {last['seconds'] / 60:.0f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--weights", default="joint.pt")
    parser.add_argument("--to", type=Path, default=HOME)
    parser.add_argument("--images", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    vlm = evaluate.load(options.run, options.weights)
    vlm.name = "embedded"
    world = World(0, "validation")
    found = measure_equilibrium(
        vlm, [world.scene(i) for i in range(options.images)], batch=32, data="validation split of the miniature world"
    )
    shutil.rmtree(options.to, ignore_errors=True)
    vlm.model.half().save_pretrained(options.to)
    vlm.processor.save_pretrained(options.to)
    found.save(options.to / FILE)
    config = json.loads((options.run / "config.json").read_text())
    path = options.run / "scores.jsonl"
    lines = [x for x in path.read_text().splitlines() if json.loads(x)["weights"] == options.weights]
    card = CARD.read_text().format(
        parameters=sum(p.numel() for p in vlm.model.parameters()),
        megabytes=(options.to / "model.safetensors").stat().st_size / 1e6,
        stages=stages(options.run),
        config=json.dumps(config),
        scores="\n".join(lines),
        weights=options.weights,
        **{k: config[k] for k in TOLD},
    )
    (options.to / "README.md").write_text(card)
    print(f"{options.to}: equilibrium {found.mean:.3f}")


if __name__ == "__main__":
    main()
