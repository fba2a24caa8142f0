"""Measure the equilibrium of a model at correctly named objects."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from heal.bench.tasks.chair_mentions import chair_finder
from heal.errors import DataError
from heal.methods.equilibrium import Equilibrium
from heal.methods.heal import HEAL
from heal.studies.objects import Find, Labelled, describe
from heal.vlm import VLM
from heal.world.mentions import mentions


def coco_finder() -> Find:
    """A finder for the 80 COCO categories: CHAIR's parser with the synonyms of this package."""
    from heal.bench.tasks.synonyms import load

    return chair_finder(load())


def measure_equilibrium(
    vlm: VLM,
    pictures: Iterable[Labelled],
    method: HEAL | None = None,
    batch: int = 16,
    max_new_tokens: int = 128,
    find: Find = mentions,
    data: str = "",
) -> Equilibrium:
    """Measure the equilibrium at the correctly named objects in the plain model's descriptions."""
    method = method or HEAL(calibrate=False)
    names = [t for ts in describe(vlm, pictures, method, batch, max_new_tokens, find) for t in ts]
    right = [t for t in names if t.correct]
    if not right:
        raise DataError("the model named none of the objects in these images, so there is nothing to measure")
    source = {
        "model": vlm.name,
        "data": data,
        "correct_names": len(right),
        "names": len(names),
        "options": {k: v for k, v in method.options().items() if k not in ("alpha", "delta", "profile")},
    }
    return Equilibrium.of(np.stack([t.alpha_vis for t in right]), np.stack([t.types for t in right]), source)
