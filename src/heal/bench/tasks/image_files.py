"""Finding image files in the usual folder layouts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from heal.bench.tasks.base import File

PLACES = ("images", "", "val2014", "train2014", "images/val2014", "coco/val2014", "../images", "../val2014")


@dataclass(frozen=True)
class NamedImage:
    """An image with a given file name, located on demand."""

    name: str
    data: Path
    images: Path | None = None
    others: tuple[str, ...] = ()
    """Alternative file names."""

    def load(self) -> Image.Image:
        return File(self.path).load()

    @property
    def path(self) -> Path:
        """The first existing file under one of the names, or else the expected path."""
        folders = [self.images] if self.images is not None else [self.data / place for place in PLACES]
        coco = (self.name.removeprefix("COCO_val2014_"), f"COCO_val2014_{self.name}")
        names = dict.fromkeys((self.name, *coco, *self.others))
        places = [folder / name for folder in folders for name in names]
        return next((place for place in places if place.is_file()), places[0])


def image_key(value: object) -> str:
    """The COCO id: 42, "42", "000000000042.jpg" and "COCO_val2014_000000000042.jpg" are the same image."""
    text = str(value).strip()
    if text.isascii() and text.isdigit():
        return str(int(text))
    stem = re.sub(r"\.(jpe?g|png)$", "", text.rpartition("/")[2], flags=re.I).rpartition("_")[2]
    return str(int(stem)) if stem.isascii() and stem.isdigit() else text
