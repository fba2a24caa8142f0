"""Images of your own with known objects, listed in a file of JSON Lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heal import strict_json
from heal.errors import DataError


@dataclass(frozen=True)
class LabelledFile:
    """An image file with known objects."""

    image: Path
    objects: frozenset[str]


def labelled_files(path: Path) -> list[LabelledFile]:
    """Read JSON Lines of {"image": path, "objects": [category, …]}; paths are relative to the file."""
    found = []
    for number, record in strict_json.lines(strict_json.read_text(path), path):
        try:
            objects = record["objects"]
            if not isinstance(objects, list) or not all(isinstance(name, str) for name in objects):
                raise TypeError("objects must be a list of names")
            if not isinstance(record["image"], str) or not record["image"].strip():
                raise TypeError("image must be the name of a file")
            found.append(LabelledFile(path.parent / record["image"], frozenset(objects)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f'{path}, line {number}: give {{"image": path, "objects": [category, …]}} on each line ({error})'
            ) from error
    return found
