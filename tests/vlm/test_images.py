"""Images: every form of an image gives the same result, and other values are rejected."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heal import VLM
from heal.errors import ImageError
from heal.vlm import open_image
from tests.vlm.asking import PICTURES, PROMPTS, same


def ways(array: np.ndarray, folder: Path) -> dict[str, Any]:
    """One image in every supported form."""
    picture = Image.fromarray(array)
    picture.save(folder / "it.png")
    picture.convert("RGBA").save(folder / "with_alpha.png")
    return {
        "path": folder / "it.png",
        "string": str(folder / "it.png"),
        "picture": picture,
        "array": array,
        "alpha": picture.convert("RGBA"),
        "alpha array": np.asarray(picture.convert("RGBA")),
        "alpha path": folder / "with_alpha.png",
        "list": [array],
    }


def test_every_form_of_an_image_gives_the_same(vlm: VLM, tmp_path: Path) -> None:
    found = {name: vlm.inputs([p], [PROMPTS[0]]) for name, p in ways(PICTURES[0], tmp_path).items()}
    assert [name for name, inputs in found.items() if not same(inputs, found["array"])] == []
    assert not same(found["array"], vlm.inputs([PICTURES[1]], [PROMPTS[0]]))


def test_every_form_of_a_grey_image_gives_the_same(vlm: VLM, tmp_path: Path) -> None:
    grey = PICTURES[0][..., 0]
    forms = ways(grey, tmp_path) | {"channel": grey[..., None], "three": np.stack([grey] * 3, axis=-1)}
    found = {name: vlm.inputs([p], [PROMPTS[0]]) for name, p in forms.items()}
    assert [name for name, inputs in found.items() if not same(inputs, found["three"])] == []


@pytest.mark.parametrize("shape", [(1, 5, 3), (5, 1, 3), (1, 1, 3), (1, 5), (1, 5, 1), (5, 1, 4)])
def test_thin_array_keeps_its_shape(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    picture = open_image(array)
    assert picture.size == (shape[1], shape[0])
    colours = array[..., :3] if array.ndim == 3 else array[..., None]
    if shape[-1] == 4:
        alpha = array[..., 3:] / 255
        assert np.abs(np.asarray(picture) - (colours * alpha + 255 * (1 - alpha))).max() <= 1
        return
    assert np.array_equal(np.asarray(picture), np.broadcast_to(colours, (*shape[:2], 3)))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((4, 4, 3), 256.0, np.float32), "values from 256 to 256, .* scale it to 0–1 or 0–255"),
        (np.full((4, 4, 3), -0.1), "values from -0.1 to -0.1"),
        (np.full((4, 4), 65536, np.int64), "values from 65536 to 65536, .* scale it to 0–255 or 0–65535"),
        (np.full((4, 4), -1, np.int8), "values from -1 to -1"),
        (np.full((4, 4), np.nan), "not finite"),
        (np.array([[1.0, np.inf]]), "not finite"),
        (np.zeros((4, 4), np.complex64), "must hold numbers, not complex64"),
        (np.full((4, 4), None), "must hold numbers, not object"),
        (np.zeros((4, 4, 2), np.uint8), r"\[height, width, 3\], not \(4, 4, 2\)"),
        (np.zeros((3, 4, 4, 3), np.uint8), r"not \(3, 4, 4, 3\)"),
        (np.zeros(4, np.uint8), r"not \(4,\)"),
        (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
    ],
)
def test_wrong_array(vlm: VLM, array: np.ndarray, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        vlm.inputs([array], [PROMPTS[0]])


def test_missing_file(vlm: VLM, tmp_path: Path) -> None:
    for path in (tmp_path / "no.png", tmp_path):
        with pytest.raises(ImageError, match=f"there is no image at {path}"):
            vlm.generate(str(path), PROMPTS[0])


@pytest.mark.parametrize("kind", ["empty", "text", "cut"])
def test_unreadable_file(vlm: VLM, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it.png"
    Image.fromarray(PICTURES[0]).save(path)
    path.write_bytes({"empty": b"", "text": b"no picture", "cut": path.read_bytes()[:-2000]}[kind])
    with pytest.raises(ImageError, match=r"it\.png cannot be read as an image: "):
        vlm.generate(path, PROMPTS[0])


def test_values_that_are_not_images(vlm: VLM, without_type_checker: None) -> None:
    with pytest.raises(ImageError, match="a path, a PIL image or an array, not int"):
        vlm.generate([7], PROMPTS[0])
