"""A finished run folder, created without a model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heal.bench import create
from heal.bench.run.folder import Folder
from heal.bench.run.records import Record
from heal.bench.tasks.base import fingerprint
from heal.bench.tasks.catalogue import options_of

TASK = "mini-pope:count=1"
METHODS = ("plain", "heal")


def finished(path: Path, said: Callable[[str, str], str | None] = lambda label, method: label) -> Path:
    """A run of two methods; `said` gives the text for a label and a method, None for a failure."""
    task = create("mini-pope", count=1)
    samples = task.samples()
    described = {
        "name": "mini-pope",
        "options": dict(options_of(task)),
        "samples": len(samples),
        "fingerprint": fingerprint(samples),
        "decoding": {"do_sample": False, "num_beams": 1, "max_new_tokens": 10},
    }
    configuration = {
        "model": {"name": "none", "dtype": "float32", "device": "cpu", "weights": "0"},
        "tasks": {TASK: described},
        "methods": {"plain": None, "heal": {"name": "heal", "options": {}}},
        "limit": None,
        "seed": 0,
        "batch_size": 16,
        "max_new_tokens": None,
        "generate": {},
        "prefix_cache": False,
    }
    folder = Folder(path)
    with folder.locked():
        folder.start(configuration, {"versions": {}}, {TASK: samples}, resume=False)
        with folder.appender() as file:
            for method in METHODS:
                file.add([record(method, s.id, said(s.truth["label"], method)) for s in samples])
    return path


def record(method: str, sample: str, text: str | None) -> Record:
    if text is None:
        return Record(TASK, method, sample, 0, error="ImageError: there is no image 7.jpg")
    fired = None if method == "plain" else {"steps": 1, "changes": 2, "sizes": {"beta": 0.5}, "reason": None}
    return Record(TASK, method, sample, 0, text, 1, "stop", 0.5, 0.25, 1000, fired, {"answer": text})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]


def rewrite(path: Path, records: list[Any]) -> None:
    (path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
