"""Images with known objects for fitting and judging: the miniature world, a file of your own, or CHAIR's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heal.bench.tasks.base import Sample
from heal.detect.collecting import Picture
from heal.detect.words import COCO, WORLD


@dataclass(frozen=True)
class Source:
    """Images of one kind."""

    kind: str
    name: str
    """What they are, in results and in files of features."""
    words: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class SamplePicture:
    """The image of a benchmark's sample with its objects."""

    sample: Sample

    @property
    def image(self) -> Any:
        return self.sample.image()

    @property
    def objects(self) -> frozenset[str]:
        return frozenset(self.sample.truth["objects"])


def sources(data: Path | None, limit: int, split: str, seed: int = 0) -> list[Source]:
    """At most `limit` images in all. `split` is that of the miniature world, which is used without `data`."""
    if data is None:
        return world_sources(limit, split)
    if data.is_dir():
        return [_chair(data, limit, seed)]
    from heal.bench.tasks.labelled_files import labelled_files

    found = labelled_files(data)[:limit]
    return [Source(data.stem, data.name, COCO, found)]


def world_sources(limit: int, split: str) -> list[Source]:
    """As many natural as counter scenes."""
    from heal.world.world import DISTRIBUTIONS, World

    found = []
    for index, kind in enumerate(DISTRIBUTIONS):
        count = (limit + 1 - index) // len(DISTRIBUTIONS)
        world = World(0, split, kind)  # type: ignore[arg-type]
        name = f"{split} split of the miniature world, seed 0, {count} {kind} scenes"
        found.append(Source(kind, name, WORLD, [world.scene(number) for number in range(count)]))
    return [source for source in found if source.pictures]


def _chair(folder: Path, limit: int, seed: int) -> Source:
    from heal.bench.tasks.chair import Chair

    samples = Chair(data=folder, count=limit, seed=seed).samples()[:limit]
    return Source("chair", f"{len(samples)} images of CHAIR", COCO, [SamplePicture(sample) for sample in samples])
