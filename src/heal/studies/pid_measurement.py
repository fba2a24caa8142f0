"""What the image alone, the text alone and both together make of the output of each head, as numbers to bin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heal.bench.tasks.base import Sample
from heal.methods.heal import HEAL
from heal.studies.layer_details import AtLayer, observed
from heal.studies.parts import Measured, Measurement
from heal.studies.setup import Setup
from heal.vlm import VLM

DIRECTIONS = 4
SEED = 0
"""Of the directions."""


def pid_measurement(setup: Setup, distribution: str) -> Measurement:
    """The part `pid DISTRIBUTION`."""
    method, tokens = replace(setup.heal, calibrate=False), setup.caption_tokens

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        return measured(vlm, samples, method, tokens)

    return Measurement(
        f"pid {distribution}",
        "pid",
        setup.captions(distribution),
        measure,
        {"method": method.options(), "max_new_tokens": tokens, "directions": DIRECTIONS, "seed": SEED},
        setup.batch_size,
        tokens,
        passes=1.3,
    )


def measured(vlm: VLM, samples: Sequence[Sample], method: HEAL, tokens: int) -> list[Measured]:
    """`scores` [step, layer, head, 3]: I_vis, I_lang, I_total. `values` [step, layer, head, direction, 3]: what the
    visual positions alone give (V), what the language positions alone give (L), and the output of the head (Y)."""
    found = observed(vlm, method, Projections(), samples, 1, max_new_tokens=tokens)
    records = []
    for sample, own in zip(samples, found, strict=True):
        arrays = {name: value.float().numpy().astype(np.float32) for name, value in own.values.items()}
        records.append(Measured(sample.id, {"unit": sample.unit, "steps": own.steps}, arrays))
    return records


class Projections:
    """The two parts and the output of every head along fixed random directions."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Tensor] = {}

    def __call__(self, at: AtLayer) -> dict[str, Tensor]:
        visual, language = at.at.split()[:2]
        directions = self.directions(at.layer, *at.heads.shape[1:]).to(at.heads.device)
        vectors = torch.stack([visual.value.float(), language.value.float(), at.heads], -2)
        values = torch.einsum("rhkd,hnd->rhnk", vectors, directions)
        return {"scores": at.scores, "values": values}

    def directions(self, layer: int, heads: int, dim: int) -> Float[Tensor, "heads direction dim"]:
        """Unit vectors, the same in every run."""
        place = layer, heads, dim
        if place not in self._known:
            rng = np.random.default_rng([SEED, layer])
            drawn = rng.standard_normal((heads, DIRECTIONS, dim))
            unit = drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
            self._known[place] = torch.from_numpy(unit.astype(np.float32))
        return self._known[place]
