"""Models of the tests of VLM."""

import shutil
from pathlib import Path

import pytest

from heal import VLM


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.random()


@pytest.fixture
def own() -> VLM:
    """A model that a test may modify."""
    return VLM.random()


@pytest.fixture(scope="module")
def saved(vlm: VLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint on disk. Do not modify it."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))
