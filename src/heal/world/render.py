"""Render a scene as an image."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from heal.world.scene import CANVAS, Scene
from heal.world.sprites import sprite


def render(scene: Scene) -> Image.Image:
    """Render a scene. The result is deterministic."""
    rng = np.random.default_rng(scene.look)
    image = Image.fromarray(_background(rng)).convert("RGBA")
    # distant objects first, so that near (large) ones cover them
    instances = [(box, thing) for thing in scene.things for box in thing.boxes]
    for box, thing in sorted(instances, key=lambda pair: pair[0].y + pair[0].size):
        picture = sprite(thing.category, thing.colour, box.size)
        if rng.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image.alpha_composite(picture, (box.x, box.y))
    out = image.convert("RGB")
    blur = float(rng.uniform(0.0, 0.9))
    if blur > 0.25:
        out = out.filter(ImageFilter.GaussianBlur(blur))
    pixels = np.asarray(out, dtype=np.float32) * rng.uniform(0.8, 1.1)
    pixels += rng.normal(0, rng.uniform(3, 16), pixels.shape).astype(np.float32)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _background(rng: np.random.Generator) -> np.ndarray:
    """Two colours that meet at a horizon, with texture."""
    top, bottom = rng.integers(90, 235, (2, 3)).astype(np.float32)
    horizon = rng.uniform(0.3, 0.8) * CANVAS
    rows = np.arange(CANVAS, dtype=np.float32)[:, None]
    share = 0.5 + 0.5 * np.tanh((rows - horizon) / (2 * rng.uniform(0.5, 12)))
    column = top * (1 - share) + bottom * share
    coarse = rng.normal(0, rng.uniform(0, 14), (12, 12, 1)).astype(np.float32)
    texture = coarse.repeat(CANVAS // 12, axis=0).repeat(CANVAS // 12, axis=1)
    return np.clip(column[:, None] + texture, 0, 255).astype(np.uint8)
