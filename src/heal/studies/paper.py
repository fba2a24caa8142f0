"""What the paper prints, for the columns beside our own figures. Facts with their citation, never a test."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.errors import ConfigError

FILE = Path(__file__).parent / "data" / "paper.json"


@lru_cache(maxsize=1)
def figures() -> dict[str, Any]:
    """All figures as they are in paper.json."""
    return strict_json.read(FILE)


def printed(*path: str) -> Any:
    """A figure by its path: `printed("robustness", "masking", "zero", "agreement")`. None: the paper prints none."""
    value: Any = figures()["figures"]
    for place, name in enumerate(path):
        if not isinstance(value, dict) or name not in value:
            raise ConfigError(f"paper.json has no {' / '.join(path[: place + 1])}")
        value = value[name]
    return value


CITATION: str = figures()["citation"]["short"]
