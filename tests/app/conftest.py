"""Shared by the tests of the app without a browser. They are skipped where gradio is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heal import VLM

if TYPE_CHECKING:
    from heal.app.answering import Answerer


@pytest.fixture(scope="session")
def vlm() -> VLM:
    return VLM.embedded()


@pytest.fixture(scope="session")
def answerer(vlm: VLM, tmp_path_factory: pytest.TempPathFactory) -> Answerer:
    from heal.app.answering import Answerer

    found = Answerer(vlm, tmp_path_factory.mktemp("uploads").resolve())
    found.examples.write(found.folder / "examples")
    return found


@pytest.fixture(scope="session")
def scene(answerer: Answerer) -> dict[str, object]:
    """A counter scene, as the page sends it."""
    path = answerer.folder / "examples" / "counter-1.png"
    return {"path": str(path), "orig_name": Path(path).name}
