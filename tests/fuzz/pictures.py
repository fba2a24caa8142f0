"""Images: unusual modes, sizes and formats, damaged files, arrays."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, features

from heal.bench.tasks.base import File
from heal.vlm import open_image
from tests.fuzz import odd
from tests.fuzz.oracle import Draw, Nonsense, check

MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA", "L"),
    "GIF": ("P", "L", "RGB"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "LAB", "YCbCr"),
    "BMP": ("1", "L", "P", "RGB"),
    "PPM": ("1", "L", "RGB", "I;16"),
    "ICO": ("RGBA",),
    "TGA": ("L", "RGB", "RGBA"),
    "JPEG2000": ("L", "RGB", "RGBA"),
}
if features.check("avif"):
    MODES["AVIF"] = ("RGB", "RGBA")
SIZES = ((1, 1), (1, 7), (9, 1), (8, 8), (33, 17), (64, 48))
LOSSY = ("JPEG", "WEBP", "AVIF", "JPEG2000", "GIF")
DTYPES = (
    "uint8",
    "uint8",
    "uint8",
    "int64",
    "float32",
    "float64",
    "bool",
    "uint16",
    "int8",
    "complex64",
    "object",
    "U1",
)


@cache
def _encoded(form: str, mode: str, size: tuple[int, int]) -> bytes | None:
    """An image that is dark on the left and bright on the right, or None if the format does not support it.

    Pillow writes some images that it cannot read, such as icons of 1 × 7 pixels.
    """
    width, height = size
    ramp = np.tile(np.linspace(0, 1, width), (height, 1))
    if mode in ("I;16", "I"):
        picture = Image.fromarray((ramp * 65535).astype(np.uint16 if mode == "I;16" else np.int32))
    elif mode == "F":
        picture = Image.fromarray(ramp.astype(np.float32))
    else:
        picture = Image.fromarray((ramp * 255).astype(np.uint8)).convert("RGB" if mode == "LAB" else mode)
        if mode in ("LA", "RGBA"):
            picture.putalpha(255)
    out = io.BytesIO()
    try:
        picture.save(out, form)
        with Image.open(out) as written:
            written.load()
    except (OSError, KeyError, ValueError):
        return None
    return out.getvalue()


def drawn(draw: Draw) -> tuple[bytes, str, tuple[int, int]]:
    while True:
        form = draw.choice(list(MODES))
        mode, size = draw.choice(MODES[form]), draw.choice(SIZES)
        content = _encoded(form, mode, size)
        if content is not None:
            return content, f"{form} {mode} {size[0]}×{size[1]}", size


def _both(path: Path) -> list[Image.Image]:
    """Load as a user and as a benchmark does."""
    return [open_image(str(path)), File(path).load()]


def odd_pictures(draw: Draw) -> None:
    """Images of any mode keep their size and content."""
    content, what, size = drawn(draw)
    path = draw.place / draw.choice(("a.png", "a.jpg", "a", "ü.png", "a b.PNG", "a\n.png"))
    path.write_bytes(content)
    draw.show(what)
    for found in _both(path):
        _check_seen(found, what, size)


def given_pictures(draw: Draw) -> None:
    """The same for images in memory."""
    content, what, size = drawn(draw)
    draw.show(f"PIL image: {what}")
    with Image.open(io.BytesIO(content)) as picture:
        picture.load()
        _check_seen(open_image(picture), what, size)


def _check_seen(found: Image.Image, what: str, size: tuple[int, int]) -> None:
    check(found.mode == "RGB", f"the mode is {found.mode}")
    check(found.size == size or what.startswith("ICO"), f"the size is {found.size}, not {size}")
    if size[0] < 8:
        return
    grey = np.asarray(found, dtype=float).mean(axis=(0, 2))
    mode = what.split()[1]
    third = max(1, len(grey) // 3)
    check(grey[-third:].mean() - grey[:third].mean() > 60, f"{mode} images lose their content")


def damaged_pictures(draw: Draw) -> None:
    """A truncated file is refused, or still gives the whole image."""
    content, what, _ = drawn(draw)
    path = draw.place / "a.png"
    path.write_bytes(content)
    whole = None if draw.often(0.5) else open_image(path)
    mutated = odd.mutate_bytes(draw, content)
    path.write_bytes(mutated.content)
    draw.show(f"{what}: {mutated.how}")
    for found in _both(path):
        check(found.mode == "RGB" and min(found.size) > 0, "not an RGB image")
        if whole is not None and mutated.change == "removed":
            check(
                found.size == whole.size and np.array_equal(np.asarray(found), np.asarray(whole)),
                f"a truncated {what.split()[0]} file is read as an image",
            )


def places(draw: Draw) -> None:
    """Paths that are not images."""
    good = draw.place / "good.png"
    good.write_bytes(_encoded("PNG", "RGB", (8, 8)) or b"")
    path = odd.path_to_read(draw, good)
    draw.show(path)
    for read in (open_image, lambda p: File(Path(p)).load()):
        if read(path).size != (8, 8):
            raise Nonsense("a different image")


def arrays(draw: Draw) -> None:
    shape = tuple(draw.choice((0, 1, 2, 3, 4, 5, 8, 16)) for _ in range(draw.choice((0, 1, 2, 3, 3, 3, 4))))
    if len(shape) == 3 and draw.often(0.6):
        shape = (*shape[:2], draw.choice((1, 3, 4)))
    dtype = draw.choice(DTYPES)
    values = np.random.default_rng(draw.randrange(2**32)).integers(0, 256, shape)
    array = (values / 255 if dtype.startswith("float") and draw.often(0.5) else values).astype(dtype)
    if dtype.startswith("float") and array.size and draw.often(0.3):
        array.flat[0] = draw.choice((np.nan, np.inf, -np.inf, -1, 1e30))
    if array.ndim >= 2 and draw.often(0.2):
        array = array[::-1, ::-1]
    if draw.often(0.1):
        array = np.asfortranarray(array)
    draw.show(f"array of {array.dtype} {array.shape}")
    found = open_image(array)
    seen = array[..., :3] if array.ndim == 3 else array
    check(found.mode == "RGB" and found.size == array.shape[1::-1], f"the size is {found.size}")
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3:
        check(np.array_equal(np.asarray(found), array), "different pixels")
    check(
        array.size < 12 or seen.std() == 0 or np.asarray(found).std() > 0,
        f"{array.dtype} arrays lose their content",
    )
