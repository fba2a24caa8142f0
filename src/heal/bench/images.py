"""Where the image of a sample is, given the folders that people have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from heal.bench.task import File

PLACES = ("images", "", "val2014", "images/val2014", "coco/val2014", "../images", "../val2014")


@dataclass(frozen=True)
class Named:
    """An image known by its name, looked for when it is needed."""

    name: str
    data: Path
    images: Path | None = None

    def load(self) -> Image.Image:
        return File(self.path).load()

    @property
    def path(self) -> Path:
        """The first place that has it, under this name or COCO's other one; else where it was expected."""
        folders = [self.images] if self.images is not None else [self.data / place for place in PLACES]
        names = dict.fromkeys((self.name, self.name.removeprefix("COCO_val2014_"), f"COCO_val2014_{self.name}"))
        places = [folder / name for folder in folders for name in names]
        return next((place for place in places if place.is_file()), places[0])
