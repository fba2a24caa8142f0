"""Example pictures whose objects are known: scenes of the miniature world, from its validation split."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from PIL import Image

from heal.world import World
from heal.world.world import DISTRIBUTIONS, Distribution

SCENES = range(4)
"""Of each distribution."""


@dataclass(frozen=True)
class Example:
    """A picture with a label and the objects that it shows."""

    label: str
    image: Image.Image
    objects: frozenset[str]


class Examples:
    """Pictures that the user can choose. They are recognised by their pixels, wherever a file comes from."""

    def __init__(self, found: tuple[Example, ...] = ()) -> None:
        self.all = found
        self._objects = {digest(one.image): one.objects for one in found}

    @classmethod
    def of_world(cls) -> Examples:
        """A few natural and a few counter scenes."""
        return cls(tuple(_example(kind, index) for kind in ("natural", "counter") for index in SCENES))

    def objects(self, image: Image.Image) -> frozenset[str] | None:
        """What the picture shows, or None if it is no example."""
        return self._objects.get(digest(image))

    def write(self, folder: Path) -> list[Path]:
        """Write the pictures as PNG files, without loss."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{one.label.replace(' ', '-')}.png" for one in self.all]
        for one, path in zip(self.all, paths, strict=True):
            one.image.save(path)
        return paths


def digest(image: Image.Image) -> bytes:
    return sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).digest()


def _example(kind: Distribution, index: int) -> Example:
    assert kind in DISTRIBUTIONS
    view = World(0, "validation", kind).scene(index)
    return Example(f"{kind} {index + 1}", view.image, view.objects)
