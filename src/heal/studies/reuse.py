"""Reuse the answers of other runs: of other studies, and of folders that `heal eval` has made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heal.bench.run.folder import RUN, Folder
from heal.bench.run.plan import Batch
from heal.bench.run.records import Key, Record
from heal.bench.tasks.base import Sample, fingerprint
from heal.json_values import json_values

COMMON = ("seed", "generate", "max_new_tokens", "prefix_cache")
"""Settings that answers depend on, besides the batch size."""


@dataclass(frozen=True)
class Asked:
    """The run that needs answers: its configuration (`runner.describe`), samples and batches."""

    configuration: Mapping[str, Any]
    samples: Mapping[str, Sequence[Sample]]
    batches: Sequence[Batch]


def reusable(asked: Asked, folders: Iterable[Path]) -> dict[Key, Record]:
    """Answers of these folders to the same samples by the same model with the same methods and decoding.

    Only whole batches of equal size and samples are taken, because rounding depends on the rows of a batch. Records
    get the names and batch numbers of the new run.
    """
    found: dict[Key, Record] = {}
    for path in folders:
        if (path / RUN).is_file():
            for key, record in _of_folder(asked, Folder(path)).items():
                found.setdefault(key, record)
    return found


def _of_folder(asked: Asked, folder: Folder) -> dict[Key, Record]:
    there, here = folder.description()["configuration"], json_values(asked.configuration)
    same = there["model"] == here["model"] and there["batch_size"] == here["batch_size"]
    if not same or any(there.get(name) != here.get(name) for name in COMMON):
        return {}
    tasks = {task: _equal_task(task, asked, there) for task in asked.samples}
    methods = {m: _equal(there["methods"], options) for m, options in here["methods"].items()}
    records = folder.records()
    found: dict[Key, Record] = {}
    for batch in asked.batches:
        other = tasks[batch.task]
        for method, theirs in methods.items():
            if other is None or theirs is None:
                continue
            own = [records.get(Key(other, theirs, sample.id)) for sample in batch.samples]
            for record in _whole(own):
                named = replace(record, task=batch.task, method=method, batch=batch.number)
                found[named.key] = named
    return found


def _whole(records: Sequence[Record | None]) -> list[Record]:
    """The records of a batch if none is missing or failed, and all were answered in one batch."""
    there = [record for record in records if record is not None and record.error is None]
    return there if len(there) == len(records) and len({record.batch for record in there}) == 1 else []


def _equal_task(name: str, asked: Asked, there: Mapping[str, Any]) -> str | None:
    """The name that the other run gives to the same samples with the same decoding."""
    own, decoding = fingerprint(asked.samples[name]), asked.configuration["tasks"][name]["decoding"]
    return next(
        (
            other
            for other, task in there["tasks"].items()
            if task["fingerprint"] == own and task["decoding"] == json_values(decoding)
        ),
        None,
    )


def _equal(methods: Mapping[str, Any], options: Any) -> str | None:
    return next((name for name, other in methods.items() if other == options), None)
