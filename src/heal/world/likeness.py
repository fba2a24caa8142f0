"""Whether a picture could be a scene of the miniature world: the embedded model knows nothing else."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from heal.world.scene import CANVAS

SQUARE = 0.02
"""How far from square a resized scene may be."""
DARKEST = 88
"""Backgrounds are drawn from 90 up in every channel, so few rows of a scene are darker than this in all of them."""
GRAIN = 1.3
"""Every scene is drawn with noise, which a photo made that small has not. Storing it as JPEG takes it away."""
PLAIN = 0.40
NEAR = 24
"""A scene has at least that share of its pixels that close to the median colour of their row: its background."""


def unlike_scenes(picture: Image.Image) -> bool:
    """True if a picture is far from every scene: not square, too dark, or without a plain background.

    Measured on scenes that the thresholds were not chosen on (both distributions): none of 3000 is taken for
    something else as it is drawn; of 504, 0.6 to 0.8 % are as JPEG of quality 50 or 20, halved, or enlarged four
    times with JPEG 60. Of 60 COCO photos, 98 % are recognised (nearly all by their shape), 65 % when cut to a square,
    and about half when made as small as a scene. So a false alarm is rare, and silence proves nothing.
    """
    if picture.size == (CANVAS, CANVAS) and _grain(picture) >= GRAIN:
        return False
    if abs(picture.width - picture.height) > SQUARE * max(picture.size):
        return True
    small = picture.resize((CANVAS, CANVAS), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(1.5))
    pixels = np.asarray(small, dtype=np.float32)
    rows = np.median(pixels, axis=1, keepdims=True)
    dark = np.quantile(rows.max(2), 0.1) < DARKEST
    plain = (np.abs(pixels - rows).max(2) < NEAR).mean()
    return bool(dark or plain < PLAIN)


def _grain(picture: Image.Image) -> float:
    """How much neighbours differ where a picture is smoothest."""
    pixels = np.asarray(picture, dtype=np.float32)
    return float(np.quantile(np.abs(np.diff(pixels, axis=1)).mean(2), 0.1))
