"""Warnings of the embedded model about real photos."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image

from heal.world.likeness import unlike_scenes


def test_photos_are_not_scenes(official: Callable[[str], Path]) -> None:
    photos = [Image.open(path).convert("RGB") for path in sorted(official("images").glob("*.jpg"))]
    assert sum(map(unlike_scenes, photos)) >= 0.9 * len(photos)
    cut = [photo.crop((0, 0, min(photo.size), min(photo.size))) for photo in photos]
    assert sum(map(unlike_scenes, cut)) >= 0.5 * len(cut)
