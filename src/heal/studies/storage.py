"""The folder of a measurement: a description, and one file for each batch, written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from heal import strict_json
from heal.atomic_write import PART, atomic_write
from heal.errors import FileError, RunError
from heal.json_values import json_values
from heal.studies.parts import Measured, Records

DESCRIPTION = "measurement.json"
FORMAT = "1"


@dataclass(frozen=True)
class Store:
    """The results of one measurement on disk."""

    path: Path

    def start(self, description: Mapping[str, Any]) -> None:
        """Create the folder, or check its description and remove the incomplete files of a killed run."""
        place = self.path / DESCRIPTION
        if place.exists():
            if strict_json.read(place, RunError) != json_values(description):
                raise RunError(f"{self.path} has another measurement: remove this folder and measure again")
            for part in self.path.glob(f".*{PART}"):
                part.unlink(missing_ok=True)
            return
        _write(place, json.dumps(json_values(description), ensure_ascii=False, indent=1) + "\n")

    def batch(self, number: int) -> Path:
        return self.path / f"batch-{number:06d}.safetensors"

    def missing(self, batches: int) -> list[int]:
        """The batches that have no file yet. A damaged file is removed, and measured again."""
        return [number for number in range(batches) if not self._complete(number)]

    def _complete(self, number: int) -> bool:
        path = self.batch(number)
        if not path.exists():
            return False
        try:
            read(path)
        except RunError:
            path.unlink()
            return False
        return True

    def write(self, number: int, found: Sequence[Measured]) -> None:
        _write(self.batch(number), content(found))

    def records(self, batches: int, count: int) -> Records:
        return Records(tuple(partial(read, self.batch(number)) for number in range(batches)), count)


def content(found: Sequence[Measured]) -> bytes:
    """One safetensors file: arrays as `index/name`, ids and facts as JSON in its metadata."""
    arrays = {f"{i}/{name}": np.ascontiguousarray(a) for i, m in enumerate(found) for name, a in m.arrays.items()}
    records = [{"id": m.id, "facts": json_values(dict(m.facts))} for m in found]
    return to_bytes(arrays, metadata={"heal_measured": FORMAT, "records": json.dumps(records)})


def read(path: Path) -> list[Measured]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        records = strict_json.parse(metadata["records"], surrogates=True)
        found: list[dict[str, np.ndarray]] = [{} for _ in records]
        for name, array in arrays.items():
            index, _, own = name.partition("/")
            found[int(index)][own] = array
        return [Measured(r["id"], r["facts"], own) for r, own in zip(records, found, strict=True)]
    # safetensors raises several kinds of errors: unknown types, truncated headers, no permission
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise RunError(f"{path} is damaged ({error}): remove it and measure again") from error


def _write(path: Path, data: str | bytes) -> None:
    try:
        atomic_write(path, data)
    except FileError as error:
        raise RunError(f"{error}. Earlier batches are intact: run the same command again to continue") from error
