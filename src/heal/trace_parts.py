"""Parts of a trace: image hashes, thumbnails, spans of visual tokens, texts of alternatives, and patches."""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from heal.analysis.alternatives import ALTERNATIVES
from heal.errors import TraceError

WHOLE = (0.0, 0.0, 1.0, 1.0)
"""The box of patches that cover the whole image."""
THUMBNAIL_SIDE = 256
"""Maximum side of a thumbnail in pixels."""
THUMBNAIL_BYTES = 32 * 1024
"""Maximum size of an encoded thumbnail."""
QUALITIES = (85, 70, 50, 30, 10)
"""JPEG qualities to try, best first. Random noise of 256 × 256 pixels fits at 50."""


@dataclass(frozen=True)
class TracedImage:
    """The hash, size and thumbnail of one image of a prompt.

    The thumbnail has at most `THUMBNAIL_SIDE` pixels on its longest side and at most `THUMBNAIL_BYTES` bytes.
    """

    sha256: str
    """Hash of the RGB pixels, row by row, as the processor received them (hexadecimal)."""
    width: int
    height: int
    thumbnail: bytes
    """PNG if small enough, otherwise JPEG."""

    # Invalid fields raise the errors below instead of those of a runtime type checker.
    __no_type_check__ = True

    def __post_init__(self) -> None:
        if not isinstance(self.sha256, str) or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise TraceError(f"the sha256 of an image must be 64 hexadecimal digits, got {str(self.sha256)[:80]!r}")
        for name in ("width", "height"):
            if not _is_whole(getattr(self, name)) or getattr(self, name) < 1:
                raise TraceError(f"the {name} of an image must be a positive integer, got {getattr(self, name)!r}")
        if not isinstance(self.thumbnail, bytes):
            raise TraceError(f"the thumbnail of an image must be bytes, got {type(self.thumbnail).__name__}")
        if not 0 < len(self.thumbnail) <= THUMBNAIL_BYTES:
            raise TraceError(
                f"the thumbnail of an image must have 1 to {THUMBNAIL_BYTES} bytes, got {len(self.thumbnail)}"
            )

    @classmethod
    def of(cls, image: Image.Image) -> TracedImage:
        rgb = image.convert("RGB")
        return cls(hashlib.sha256(rgb.tobytes()).hexdigest(), rgb.width, rgb.height, _thumbnail(rgb))


@dataclass(frozen=True, eq=False)
class Patches:
    """Where each head looks in the image: its attention weights on the visual tokens, in 8 bits."""

    levels: UInt8[np.ndarray, "step layer head patch"]
    unit: Float32[np.ndarray, "step layer head"]
    """The weight of one level. The error of a weight is at most half a unit."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the patches in the image. None if they are not a grid over one picture."""
    box: tuple[float, ...] = WHOLE
    """The part of the image that the grid covers: left, top, right, bottom, as shares of its width and height."""

    __no_type_check__ = True

    def __post_init__(self) -> None:
        levels, unit = self.levels, self.unit
        if not isinstance(levels, np.ndarray) or levels.dtype != np.uint8 or levels.ndim != 4:
            raise TraceError("the levels of patches must be a numpy array of uint8 [step, layer, head, patch]")
        if not isinstance(unit, np.ndarray) or unit.dtype != np.float32 or unit.shape != levels.shape[:3]:
            raise TraceError(f"the unit of patches must be a numpy array of float32 {list(levels.shape[:3])}")
        grid = self.grid
        if grid is not None:
            if not isinstance(grid, (list, tuple)) or len(grid) != 2 or not all(map(_is_whole, grid)):
                raise TraceError(f"the grid of patches must be rows and columns, got {grid!r}")
            if grid[0] * grid[1] != levels.shape[3]:
                raise TraceError(f"a grid of {grid[0]} × {grid[1]} does not have {levels.shape[3]} patches")
            object.__setattr__(self, "grid", tuple(grid))
        box = self.box
        if not isinstance(box, (list, tuple)) or len(box) != 4 or not all(isinstance(x, (int, float)) for x in box):
            raise TraceError(f"the box of patches must be left, top, right and bottom, got {box!r}")
        if not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            raise TraceError(f"the box of patches must lie in the image, from 0 to 1, got {box!r}")
        object.__setattr__(self, "box", tuple(map(float, box)))

    @property
    def weights(self) -> Float32[np.ndarray, "step layer head patch"]:
        return self.levels * self.unit[..., None]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Patches):
            return NotImplemented
        same = np.array_equal(self.levels, other.levels) and np.array_equal(self.unit, other.unit)
        return bool(same and (self.grid, self.box) == (other.grid, other.box))

    __hash__ = None  # type: ignore[assignment]


class VisualSpan(NamedTuple):
    """Visual tokens from `start` up to `stop`, counted from the first token of the prompt without padding."""

    start: int
    stop: int
    image: int | None = None
    """The index of the image, or None if it cannot be determined."""


def check_spans(spans: object, images: int, tokens: int | None) -> tuple[VisualSpan, ...]:
    """Check that the spans are in order, do not overlap, and are inside the prompt."""
    if not isinstance(spans, (list, tuple)):
        raise TraceError(f"visual_positions must be a tuple of (start, stop, image), got {type(spans).__name__}")
    found, end = [], 0
    for span in spans:
        if not isinstance(span, (list, tuple)) or len(span) not in (2, 3) or not all(map(_is_whole, span[:2])):
            raise TraceError(f"visual_positions must be spans (start, stop, image), got {span!r}")
        own = VisualSpan(*span)
        if not end <= own.start < own.stop:
            raise TraceError(f"visual_positions must be in order and not empty, got {span!r} after position {end}")
        if tokens is not None and own.stop > tokens:
            raise TraceError(f"visual_positions must lie in the prompt of {tokens} tokens, got {span!r}")
        if own.image is not None and not (_is_whole(own.image) and 0 <= own.image < images):
            raise TraceError(f"visual_positions must name one of {images} images, got image {own.image!r}")
        found.append(own)
        end = own.stop
    return tuple(found)


def check_texts(given: object, steps: int) -> tuple[tuple[str, ...], ...]:
    """The texts of the alternatives: none, or one for each of them."""
    if not isinstance(given, (list, tuple)) or (given and len(given) != steps):
        raise TraceError(f"alternative_tokens must be a tuple with one entry for each of {steps} steps")
    for texts in given:
        known = isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts)
        if not known or len(texts) > ALTERNATIVES:
            raise TraceError(f"alternative_tokens must have at most {ALTERNATIVES} strings at each step")
    return tuple(map(tuple, given))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _thumbnail(rgb: Image.Image) -> bytes:
    """The best encoding that is small enough."""
    small = rgb.copy()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    data = _encoded(small, format="PNG", optimize=True)
    for quality in QUALITIES:
        if len(data) <= THUMBNAIL_BYTES:
            break
        data = _encoded(small, format="JPEG", quality=quality)
    return data


def _encoded(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.info.clear()  # metadata such as a colour profile can have any size
    image.save(buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()
