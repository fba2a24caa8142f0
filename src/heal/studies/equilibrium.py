"""Measure the equilibrium of a model at correctly named objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heal import strict_json
from heal.bench.tasks.chair_mentions import chair_finder
from heal.errors import DataError
from heal.methods.equilibrium import Equilibrium
from heal.methods.heal import HEAL
from heal.studies.objects import Find, Labelled, describe
from heal.vlm import VLM
from heal.world.mentions import mentions


@dataclass(frozen=True)
class LabelledFile:
    """An image file with known objects."""

    image: Path
    objects: frozenset[str]


def labelled_files(path: Path) -> list[LabelledFile]:
    """Read JSON Lines of {"image": path, "objects": [category, …]}; paths are relative to the file."""
    found = []
    for number, record in strict_json.lines(strict_json.read_text(path), path):
        try:
            objects = record["objects"]
            if not isinstance(objects, list) or not all(isinstance(name, str) for name in objects):
                raise TypeError("objects must be a list of names")
            if not isinstance(record["image"], str) or not record["image"].strip():
                raise TypeError("image must be the name of a file")
            found.append(LabelledFile(path.parent / record["image"], frozenset(objects)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f'{path}, line {number}: give {{"image": path, "objects": [category, …]}} on each line ({error})'
            ) from error
    return found


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
