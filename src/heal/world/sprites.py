"""The sprite sheet: one small image per category, tinted if the category has colours."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from heal.world.categories import CATEGORIES, COLOURS, INDEX

SIZE = 48
COLUMNS = 10
SHEET = Path(__file__).parent / "data" / "sprites.png"


@lru_cache(maxsize=1)
def _sheet() -> Image.Image:
    with Image.open(SHEET) as file:
        return file.convert("RGBA")


@lru_cache(maxsize=1024)
def sprite(category: str, colour: str | None, size: int) -> Image.Image:
    """The image of an object, `size` pixels wide and high."""
    index = INDEX[category]
    left, top = (index % COLUMNS) * SIZE, (index // COLUMNS) * SIZE
    image = _sheet().crop((left, top, left + SIZE, top + SIZE))
    if colour is not None:
        if not CATEGORIES[index].tinted:
            raise ValueError(f"{category} has no colours")
        image = tinted(image, COLOURS[colour])
    return image.resize((size, size), Image.Resampling.BILINEAR)


def tinted(image: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """Recolour a sprite and keep its shading."""
    pixels = np.asarray(image, dtype=np.float32)
    light = pixels[..., :3].mean(-1, keepdims=True) / 255
    shade = np.array(colour, dtype=np.float32) * (0.35 + 0.9 * light)
    mixed = np.clip(0.85 * shade + 0.15 * pixels[..., :3], 0, 255)
    return Image.fromarray(np.dstack([mixed, pixels[..., 3:]]).astype(np.uint8), "RGBA")
