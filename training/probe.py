"""Linear probes on patch features before and after the projector.

    python training/probe.py RUN [--weights joint.pt] [--data DIR] [--images 3000]

They predict category, colour and column of patches that show an object. The decoder is unlikely to use information
that a probe cannot read after the projector.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import data
import evaluate
import torch
import train
from torch import Tensor, nn
from torch.nn import functional as F

STEPS, BATCH, RATE = 400, 2048, 1e-2
TRAINED = 0.8  # share of training patches; the others are for testing


def accuracy(features: Tensor, truth: Tensor, classes: int) -> float:
    generator = torch.Generator().manual_seed(0)
    features = (features - features.mean(0)) / features.std(0)
    cut = int(TRAINED * len(features))  # patches of an image are contiguous, so at most one image is in both parts
    probe = nn.Linear(features.shape[1], classes)
    optimiser = torch.optim.Adam(probe.parameters(), lr=RATE)
    for _ in range(STEPS):
        rows = torch.randint(0, cut, (BATCH,), generator=generator)
        loss = F.cross_entropy(probe(features[rows]), truth[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return float((probe(features[cut:]).argmax(-1) == truth[cut:]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--weights", default="joint.pt")
    parser.add_argument("--data", type=Path, help="image cache (default: RUN/data)")
    parser.add_argument("--images", type=int, default=3000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, kinds, colours = data.pictures(options.data or options.run / "data", "validation", options.images)
    core = evaluate.load(options.run, options.weights).model.model
    tower, projected = [], []
    with torch.no_grad():
        for start in range(0, len(images), 100):
            seen = core.vision_tower(train.pixels(images[start : start + 100])).last_hidden_state[:, 1:]
            tower.append(seen.flatten(0, 1))
            projected.append(core.multi_modal_projector(seen).flatten(0, 1))
    kind, colour = (torch.from_numpy(x).long().flatten() for x in (kinds, colours))
    column = torch.arange(data.GRID**2).repeat(len(images)) % data.GRID
    thing, tinted = kind != data.BACKGROUND, colour != len(data.COLOURS)
    for name, found in (("tower", torch.cat(tower)), ("projector", torch.cat(projected))):
        told = {
            "label": accuracy(found[thing], kind[thing], data.BACKGROUND),
            "colour": accuracy(found[tinted], colour[tinted], len(data.COLOURS)),
            "column": accuracy(found[thing], column[thing], data.GRID),
        }
        print(name, ", ".join(f"{what} {100 * share:.1f} %" for what, share in told.items()))


if __name__ == "__main__":
    main()
