"""Convert images of every kind to 8-bit RGB as they would be displayed. Ambiguous images are rejected.

| kind | rule |
|---|---|
| 8-bit grey, palette, CMYK, YCbCr, HSV, 1 bit | Pillow's conversion |
| CIELAB | to sRGB, by a colour profile |
| 16-bit (grey files, uint16 arrays) | 0–65535 becomes 0–255 |
| other integers (mode I, int32 arrays …) | 0–255 unchanged; else 0–65535 becomes 0–255; else rejected |
| floats (mode F, float arrays) | 0–1 becomes 0–255; else 0–255 unchanged; else rejected, as are NaN and infinity |
| transparency | composited on white |
| EXIF orientation | applied |
| several frames | the first one |

Rules that depend on the values, 16-bit scaling and visible transparency issue a HealWarning once per kind.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from heal.errors import ConfigError, ImageError, InputWarning, first_line, shortened

ImageInput = str | Path | Image.Image | np.ndarray

MAX_PIXELS = 64_000_000
"""Default limit of pixels (about 200 MB as RGB). HEAL_MAX_PIXELS and `max_pixels` override it."""
LIMIT = "HEAL_MAX_PIXELS"
SIXTEEN = 65535
END_OF_JPEG2000 = b"\xff\xd9"
"""The decoder silently fills up a truncated file. The marker does not occur inside the data."""

_noted: set[str] = set()  # kinds of conversion that were reported already
_opening = threading.Lock()  # warning filters are global to the process


def open_image(picture: ImageInput, max_pixels: int | None = None) -> Image.Image:
    """An RGB image from a path, a PIL image or an array [height, width(, 1, 3 or 4 channels)]."""
    limit = max_pixels if max_pixels is not None else _limit()
    if isinstance(picture, Image.Image):
        return _from_pil(picture, "the image", limit)
    if isinstance(picture, np.ndarray):
        return _from_array(picture, limit)
    if not isinstance(picture, (str, Path)):
        raise ImageError(f"an image must be a path, a PIL image or an array, not {type(picture).__name__}")
    where = shortened(picture)
    if not _is_file(Path(picture)):
        hint = ": URLs are not fetched, download it first" if "://" in str(picture) else ""
        raise ImageError(f"there is no image at {where}{hint}")
    try:
        with _opened(Path(picture)) as file:
            if file.format == "JPEG2000" and END_OF_JPEG2000 not in Path(picture).read_bytes():
                raise ImageError(f"{where} cannot be read as an image: the file is truncated")
            return _from_pil(file, where, limit)
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(
            f"{where} has more pixels than Pillow decodes. If you trust it, raise PIL.Image.MAX_IMAGE_PIXELS and "
            f"{LIMIT}"
        ) from None
    except Exception as error:  # decoders raise many kinds of errors
        raise ImageError(f"{where} cannot be read as an image: {first_line(error)}") from error


def _limit() -> int:
    text = os.environ.get(LIMIT)
    if text is None:
        return MAX_PIXELS
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{LIMIT} cannot be {shortened(text, 40)!r}: write a number of pixels, like {MAX_PIXELS}")
    return int(text)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long, or the folder is not accessible
        return False


def _opened(path: Path) -> Image.Image:
    """Read the header only, without Pillow's warning about large images: `_check_size` replaces it."""
    with _opening, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(path)


def _from_pil(image: Image.Image, where: str, limit: int) -> Image.Image:
    """Decode an image after checking its size."""
    _check_size(image.width, image.height, where, limit)
    try:
        image.load()
        with suppress(Exception):  # a broken EXIF block has no orientation
            image = ImageOps.exif_transpose(image)
        return _rgb(image, where)
    except ImageError:
        raise
    except Exception as error:  # decoders raise RuntimeError (AVIF), struct.error, IndexError …
        raise ImageError(f"{where} cannot be read as an image: {first_line(error)}") from error


def _check_size(width: int, height: int, where: str, limit: int) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"{where} must have pixels, not the size {width} × {height}")
    if width * height > limit:
        raise ImageError(
            f"{where} has {width} × {height} pixels, more than the limit of {limit:,}: make it smaller, or set "
            f"{LIMIT} (max_pixels of VLM)"
        )


def _rgb(image: Image.Image, where: str) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _with_key(_scaled(np.asarray(image).astype(np.uint16), where), image)
    if image.mode in ("I", "F"):
        return _with_key(_scaled(np.asarray(image), where), image)
    if image.mode == "LAB":
        from PIL import ImageCms

        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        found = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        assert found is not None  # None only if converted in place
        return found
    if image.has_transparency_data:
        return _on_white(image.convert("LA") if image.mode == "La" else image)
    return image.convert("RGB")


def _with_key(grey: np.ndarray, image: Image.Image) -> Image.Image:
    """Grey images of more than 8 bits have no alpha, but a PNG may declare one value transparent."""
    key = image.info.get("transparency")
    if not isinstance(key, int):
        return Image.fromarray(grey).convert("RGB")
    alpha = np.where(np.asarray(image) == key, 0, 255).astype(np.uint8)
    return _on_white(Image.fromarray(np.stack([grey, alpha], -1), "LA"))


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    if np.asarray(image.getchannel("A")).min() == 255:  # opaque
        return image.convert("RGB")
    _note("transparent", "transparent parts of an image are shown on white")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def _from_array(array: np.ndarray, limit: int) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"an image array must be [height, width] or [height, width, 3], not {array.shape}")
    if 0 in array.shape:
        raise ImageError(f"an image array must have pixels, not the shape {array.shape}")
    _check_size(array.shape[1], array.shape[0], "the array", limit)
    pixels = array if array.dtype == np.uint8 else _scaled(array, "the array")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    return _rgb(Image.fromarray(np.ascontiguousarray(pixels)), "the array")


def _scaled(values: np.ndarray, where: str) -> np.ndarray:
    """Scale to 8 bits, by the rules above."""
    kind = values.dtype.kind
    if kind == "b":
        return np.where(values, 255, 0).astype(np.uint8)
    if kind not in "iuf":
        raise ImageError(f"{where} must hold numbers, not {values.dtype}")
    if kind == "f" and not np.isfinite(values).all():
        raise ImageError(f"{where} has values that are not finite (NaN or infinity)")
    low, high = values.min(), values.max()
    if kind == "u" and values.dtype.itemsize == 2:  # of either byte order
        _note("uint16", f"a 16-bit image is scaled from 0–{SIXTEEN} to 0–255: one that uses fewer bits looks dark")
        top = SIXTEEN
    else:
        tops = (1, 255) if kind == "f" else (255, SIXTEEN)
        fitting = [top for top in tops if low >= 0 and high <= top]
        if not fitting:
            raise ImageError(
                f"{where} has values from {low:.6g} to {high:.6g}, so black and white are unknown: scale it to "
                f"0–{tops[0]} or 0–{tops[1]}"
            )
        top = fitting[0]
        _note(f"{kind}{top}", f"an image of {values.dtype} is assumed to range from 0 to {top}, based on its values")
    return np.rint(values.astype(np.float32) * np.float32(255 / top)).astype(np.uint8)


def _note(kind: str, text: str) -> None:
    """Warn once per kind and process, because a dataset has thousands of images of one kind."""
    if kind not in _noted:
        _noted.add(kind)
        warnings.warn(text, InputWarning, stacklevel=2)
