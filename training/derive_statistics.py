"""Derive the scene statistics of the miniature world from the object sets of COCO images.

Input: JSON {image id: [category, …]}, made from the COCO 2014 annotations (CC BY 4.0) by whoever runs this. Output: a
mixture of scene archetypes, each with independent object probabilities, fitted by EM. Only these few thousand numbers
are committed, not the data.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from heal.world.categories import NAMES
from heal.world.statistics import TABLE

ARCHETYPES = 36
FLOOR = 2e-4  # rarer co-occurrences are set to zero


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sets = json.loads(options.objects.read_text()).values()
    index = {name: i for i, name in enumerate(NAMES)}
    table = np.array([[name in found for name in NAMES] for found in map(set, sets)], dtype=np.float64)
    table = table[table.sum(1) >= 1]
    weights, chances, likelihood = fit(table, ARCHETYPES, options.seed)
    order = np.argsort(-weights)
    record = {
        "source": "COCO 2014 object annotations (CC BY 4.0), reduced to a mixture of archetypes",
        "images": len(table),
        "log_likelihood_per_image": round(likelihood, 4),
        "categories": list(index),
        "archetypes": [
            {
                "weight": round(float(weights[k]), 5),
                "objects": {
                    NAMES[i]: round(float(chances[k, i]), 4)
                    for i in np.argsort(-chances[k])
                    if chances[k, i] >= FLOOR
                },
            }
            for k in order
        ],
    }
    TABLE.write_text(json.dumps(record, indent=0) + "\n")
    print(f"{TABLE}: {TABLE.stat().st_size:,} bytes, log-likelihood {likelihood:.3f} nats per image")
    for k in order[:12]:
        top = ", ".join(f"{NAMES[i]} {chances[k, i]:.2f}" for i in np.argsort(-chances[k])[:6])
        print(f"  {weights[k]:.3f}  {top}")


def fit(table: np.ndarray, archetypes: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Fit a mixture of independent Bernoulli variables by EM."""
    rng = np.random.default_rng(seed)
    chances = np.clip(table[rng.choice(len(table), archetypes, replace=False)] * 0.6 + 0.02, 0.01, 0.9)
    weights = np.full(archetypes, 1 / archetypes)
    likelihood = -np.inf
    for _ in range(200):
        logs = table @ np.log(chances).T + (1 - table) @ np.log1p(-chances).T + np.log(weights)
        top = logs.max(1, keepdims=True)
        share = np.exp(logs - top)
        total = share.sum(1, keepdims=True)
        before, likelihood = likelihood, float((np.log(total) + top).mean())
        share /= total
        mass = share.sum(0)
        weights = mass / mass.sum()
        chances = np.clip((share.T @ table) / mass[:, None], 1e-5, 1 - 1e-3)
        if likelihood - before < 1e-5:
            break
    return weights, chances, likelihood


if __name__ == "__main__":
    main()
