"""Location of official data, which is not part of the repository: HEAL_DATA, or shared/data next to it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ.get("HEAL_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture
def official() -> Callable[[str], Path]:
    """A file or folder of official data; skips the test if it does not exist."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"no official data: {name}")
        return DATA / name

    return find


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a JSON Lines file from records, or a text file."""

    def made(name: str, content: str | list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else "".join(json.dumps(r) + "\n" for r in content))
        return path

    return made
