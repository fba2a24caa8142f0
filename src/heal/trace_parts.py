"""The parts of a trace that describe the prompt: image hashes, thumbnails, and the spans of visual tokens."""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image

from heal.analysis.alternatives import ALTERNATIVES
from heal.errors import TraceError

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
