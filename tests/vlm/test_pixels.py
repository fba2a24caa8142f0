"""Images of every kind: converted as displayed, limited before they are decoded, rejected if broken."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heal import VLM, images
from heal.errors import ConfigError, ImageError, InputWarning
from heal.images import open_image
from tests.known import known
from tests.vlm.asking import PROMPTS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # for files broken on purpose

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
PHOTO = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_noted", set())


def grey(picture: Any) -> np.ndarray:
    """One channel of the opened image. All channels are equal."""
    pixels = np.asarray(open_image(picture))
    assert pixels.shape[2] == 3
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


# ── more than 8 bits ──────────────────────────────────────────────────────────────────────────────────────────

DEEP = {
    "uint16": RAMP.astype(np.uint16) * 257,
    "big-endian": (RAMP.astype(np.uint16) * 257).astype(">u2"),
    "int32 of 16 bits": RAMP.astype(np.int32) * 257,
    "int64 of 8 bits": RAMP.astype(np.int64),
    "float 0–1": RAMP.astype(np.float32) / 255,
    "double 0–255": RAMP.astype(np.float64),
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_arrays_are_scaled(kind: str) -> None:
    said = "16-bit image is scaled" if kind in ("uint16", "big-endian") else "is assumed to range from 0 to"
    with pytest.warns(InputWarning, match=said):
        assert np.array_equal(grey(DEEP[kind]), RAMP)
    colours = np.stack([DEEP[kind]] * 3, -1)
    assert np.array_equal(grey(colours), RAMP)


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [
        ("it.png", "uint16", "I;16"),
        ("it.tif", "uint16", "I;16"),
        ("it.tif", "int32 of 16 bits", "I"),
        ("it.tif", "float 0–1", "F"),
    ],
)
def test_deep_files_are_scaled(tmp_path: Path, name: str, kind: str, mode: str) -> None:
    Image.fromarray(DEEP[kind]).save(tmp_path / name)
    assert Image.open(tmp_path / name).mode == mode
    with pytest.warns(InputWarning):
        assert np.array_equal(grey(tmp_path / name), RAMP)


def test_other_arrays() -> None:
    assert np.array_equal(grey(RAMP > 99), np.where(RAMP > 99, 255, 0))
    with pytest.raises(ImageError, match=r"it\.tif has values that are not finite"):
        images._from_pil(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "it.tif", 99)


# ── colours ───────────────────────────────────────────────────────────────────────────────────────────────────


def with_alpha(mode: str) -> Image.Image:
    """A black image whose left half is transparent."""
    picture = Image.new("RGBA", (8, 4), (0, 0, 0, 255))
    picture.paste((0, 0, 0, 0), (0, 0, 4, 4))
    if mode == "P":
        return picture.quantize(8)
    if mode == "key":  # a grey PNG that declares one value transparent
        found = Image.new("L", (8, 4), 0)
        found.paste(7, (0, 0, 4, 4))
        found.info["transparency"] = 7
        return found
    if mode == "deep key":
        found = Image.fromarray(np.repeat(np.array([[7, 0]], np.uint16), 4, 1).repeat(4, 0))
        found.info["transparency"] = 7
        return found
    if mode == "La":
        return picture.convert("LA").convert("La")
    return picture.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "RGBa", "La", "key", "deep key"])
def test_transparency_is_shown_on_white(tmp_path: Path, mode: str) -> None:
    picture = with_alpha(mode)
    expected = np.zeros((4, 8), np.uint8)
    expected[:, :4] = 255
    with pytest.warns(InputWarning, match="transparent parts of an image are shown on white"):
        assert np.array_equal(grey(picture), expected)
    if mode in ("RGBA", "LA", "P", "key", "deep key"):
        picture.save(tmp_path / "it.png", **{k: v for k, v in picture.info.items() if k == "transparency"})
        assert np.array_equal(grey(tmp_path / "it.png"), expected)


def test_half_transparent_array() -> None:
    with pytest.warns(InputWarning):
        assert set(grey(np.full((2, 2, 4), (0, 0, 0, 51), np.uint8)).ravel()) == {204}


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "LAB", "P", "1", "RGBA"])
def test_other_colour_spaces(mode: str) -> None:
    """A red and a white half are unchanged. Opaque alpha gives no warning."""
    picture = Image.new("RGB", (8, 4), "white")
    picture.paste("red", (0, 0, 4, 4))
    if mode == "1":
        picture = picture.convert("L").point(lambda v: 255 * (v > 128))
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        given = known(ImageCms.profileToProfile(picture, *profiles, outputMode="LAB"))
    else:
        given = picture.convert(mode)
    assert given.mode == mode
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = np.asarray(open_image(given)).astype(int)
    assert np.abs(found - np.asarray(picture.convert("RGB"))).max() <= 6


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
def test_orientation_of_exif_is_applied(tmp_path: Path, kind: str) -> None:
    """Stored rotated, with an EXIF orientation."""
    picture = Image.new("RGB", (32, 16), "white")
    picture.paste("black", (0, 0, 16, 16))
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / f"it.{kind}"
    picture.save(path, exif=exif)
    with Image.open(path) as file:
        by_hand = open_image(file)
    for found in (open_image(path), by_hand):
        pixels = np.asarray(found.convert("L"))
        assert found.size == (16, 32)
        assert pixels[:12].max() < 60
        assert pixels[20:].min() > 190


def test_first_frame_of_several(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 8), shade) for shade in (10, 200)]
    frames[0].save(tmp_path / "it.gif", save_all=True, append_images=frames[1:])
    assert set(grey(tmp_path / "it.gif").ravel()) == {10}


def test_a_kind_is_reported_once(vlm: VLM, tmp_path: Path) -> None:
    Image.fromarray(DEEP["uint16"]).save(tmp_path / "it.png")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            vlm.inputs([tmp_path / "it.png", DEEP["uint16"]], PROMPTS[:2])
    assert [w.category for w in said] == [InputWarning]


# ── broken and oversized files ────────────────────────────────────────────────────────────────────────────────

FORMATS: dict[str, dict[str, Any]] = {
    "png": {},
    "jpg": {},
    "progressive.jpg": {"progressive": True},
    "webp": {},
    "lossless.webp": {"lossless": True},
    "gif": {},
    "tif": {},
    "packed.tif": {"compression": "tiff_lzw"},
    "bmp": {},
    "ppm": {},
    "tga": {},
    "ico": {},
    "avif": {},
    "jp2": {},
    "qoi": {},
}


def open_or_none(path: Path) -> Image.Image | None:
    """Rejected with an ImageError only."""
    try:
        return open_image(path)
    except ImageError:
        return None


@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_files(tmp_path: Path, kind: str) -> None:
    """A truncated file is rejected, unless nothing of the image was lost."""
    path = tmp_path / f"it.{kind}"
    Image.fromarray(PHOTO).save(path, **FORMATS[kind])
    content, whole = path.read_bytes(), np.asarray(open_image(path))
    refused = 0
    for share in (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97):
        path.write_bytes(content[: int(share * len(content))])
        found = np.asarray(opened) if (opened := open_or_none(path)) else None
        refused += found is None
        assert found is None or np.array_equal(found, whole), f"{share} of the file gave another picture"
    assert refused >= 6


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "gif", "tif", "bmp", "avif", "ico", "tga"])
def test_damaged_files_raise_nothing_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"it.{kind}"
    Image.fromarray(PHOTO).save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(25):
        broken = bytearray(content)
        for at in rng.integers(0, min(len(content), 400), 6):
            broken[at] = rng.integers(256)
        path.write_bytes(broken)
        found = open_or_none(path)
        assert found is None or found.mode == "RGB"


def huge_png(side: int) -> bytes:
    """A valid header without pixels."""
    import struct
    import zlib

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [8001, 13000, 60000])
def test_huge_images_are_rejected_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    (tmp_path / "it.png").write_bytes(huge_png(side))
    monkeypatch.setattr(Image.Image, "load", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match=r"HEAL_MAX_PIXELS") as caught:
            open_image(tmp_path / "it.png")
    assert side == 60000 or f"{side} × {side} pixels, more than the limit of 64,000,000" in str(caught.value)


def test_limit_of_pixels_can_be_set(own: VLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(PHOTO).save(tmp_path / "it.png")
    forms: list[Any] = [tmp_path / "it.png", Image.fromarray(PHOTO), PHOTO]
    for form in forms:
        monkeypatch.setenv("HEAL_MAX_PIXELS", "2240")
        assert open_image(form).size == (56, 40)
        monkeypatch.setenv("HEAL_MAX_PIXELS", "2239")
        with pytest.raises(ImageError, match="56 × 40 pixels, more than the limit of 2,239"):
            open_image(form)
        assert open_image(form, max_pixels=2240).size == (56, 40)
        own.max_pixels = 100
        with pytest.raises(ImageError, match="more than the limit of 100"):
            own.inputs([form], [PROMPTS[0]])
    for wrong in ("many", "0", "-5", ""):
        monkeypatch.setenv("HEAL_MAX_PIXELS", wrong)
        with pytest.raises(ConfigError, match="HEAL_MAX_PIXELS cannot be"):
            open_image(PHOTO)


def test_odd_paths(tmp_path: Path) -> None:
    for path, message in (
        ("https://example.org/it.png", "URLs are not fetched"),
        ("a" * 5000, "there is no image at a"),
        ("no\0where", r"there is no image at no\\x00where"),
        ("\udcff.png", r"there is no image at \\udcff\.png"),
    ):
        with pytest.raises(ImageError, match=message) as caught:
            open_image(path)
        assert len(str(caught.value)) < 400
        str(caught.value).encode()
    with pytest.raises(ImageError, match="must have pixels"):
        open_image(Image.new("RGB", (0, 5)))


def test_broken_image_that_is_loaded_lazily(vlm: VLM) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PHOTO).save(buffer, "PNG")
    lazy = Image.open(io.BytesIO(buffer.getvalue()[:3000]))
    with pytest.raises(ImageError, match="the image cannot be read as an image"):
        vlm.inputs([lazy], [PROMPTS[0]])
