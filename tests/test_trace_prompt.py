"""What a trace stores of the prompt and its images: round trips, bounds, and files of the first format."""

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

from heal.errors import TraceError
from heal.trace import _LATER, Trace
from heal.trace_parts import THUMBNAIL_BYTES, THUMBNAIL_SIDE, TracedImage, VisualSpan
from tests.test_trace import IMAGES, SCORES, make


def first_format(trace: Trace, path: Path) -> None:
    """A file in format 1."""
    arrays = {name: getattr(trace, name) for name in (*SCORES, "types", "refreshed", "token_ids")}
    record = {name: getattr(trace, name) for name in ("tokens", "text", "config", "seed", "versions")}
    save_file(arrays, path, metadata={"heal_trace": "1", "record": json.dumps(record)})


def test_a_file_of_the_first_format_loads(tmp_path: Path) -> None:
    trace = make()
    first_format(trace, tmp_path / "old")
    loaded = Trace.load(tmp_path / "old")
    assert np.isnan(loaded.logprobs).all()
    assert loaded.logprobs.shape == (3,)
    assert (loaded.prompt, loaded.messages, loaded.images, loaded.visual_positions) == ("", (), (), ())
    assert loaded.prompt_tokens is None
    told = ("prompt", "messages", "images", "visual_positions", "prompt_tokens", "alternative_tokens")
    assert replace(loaded, **{name: getattr(trace, name) for name in (*_LATER, *told)}) == trace
    assert loaded.to_dataframe().logprob.isna().all()
    loaded.save(tmp_path / "new")
    assert Trace.load(tmp_path / "new") == loaded


def test_the_prompt_and_its_images_are_saved_and_loaded(tmp_path: Path) -> None:
    trace = make()
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    assert loaded.prompt == trace.prompt
    assert loaded.messages == trace.messages
    assert loaded.images == IMAGES
    assert loaded.visual_positions == (VisualSpan(3, 19, 0), VisualSpan(20, 36, 1))
    assert isinstance(loaded.visual_positions[0], VisualSpan)
    assert loaded.prompt_tokens == 44


def test_a_small_image_is_stored_exactly() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    found = TracedImage.of(Image.fromarray(pixels))
    assert (found.width, found.height) == (48, 32)
    assert found.sha256 == hashlib.sha256(pixels.tobytes()).hexdigest()
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(found.thumbnail))), pixels)


@pytest.mark.parametrize("shape", [(256, 256), (700, 900), (1, 5000), (2000, 3)])
def test_a_thumbnail_is_bounded(shape: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)  # the worst case for compression
    image = Image.fromarray(noise)
    image.info["icc_profile"] = bytes(100_000)
    found = TracedImage.of(image)
    small = Image.open(io.BytesIO(found.thumbnail))
    assert len(found.thumbnail) <= THUMBNAIL_BYTES
    assert max(small.size) <= THUMBNAIL_SIDE
    assert (found.width, found.height) == image.size
    assert image.info["icc_profile"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sha256": "abc"}, "64 hexadecimal digits, got 'abc'"),
        ({"sha256": None}, "64 hexadecimal digits"),
        ({"width": 0}, "the width of an image must be a positive integer, got 0"),
        ({"height": 3.0}, "the height of an image must be a positive integer, got 3.0"),
        ({"thumbnail": "png"}, "the thumbnail of an image must be bytes, got str"),
        ({"thumbnail": b""}, "1 to 32768 bytes, got 0"),
        ({"thumbnail": bytes(THUMBNAIL_BYTES + 1)}, "1 to 32768 bytes, got 32769"),
    ],
)
def test_an_invalid_image_is_rejected(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        replace(IMAGES[0], **change)


@pytest.mark.parametrize(
    "thumbnail", [None, np.zeros(40_000, np.uint8), np.zeros((2, 2), np.uint8), np.zeros(9, np.float32)]
)
def test_a_forged_thumbnail_is_refused(tmp_path: Path, thumbnail: np.ndarray | None) -> None:
    make().save(tmp_path / "t")
    with safe_open(tmp_path / "t", framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    del arrays["thumbnail_1"]
    if thumbnail is not None:
        arrays["thumbnail_1"] = thumbnail
    save_file(arrays, tmp_path / "forged", metadata=metadata)
    with pytest.raises(TraceError, match="thumbnail"):
        Trace.load(tmp_path / "forged")
