"""Evaluations from hand-made answers, without a model."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heal.bench.run.folder import Folder
from heal.bench.run.plan import Settings
from heal.bench.run.records import Record
from heal.bench.score.summary import Summary, summarise
from heal.bench.tasks.base import Sample, Task
from heal.studies.parts import Evaluated
from heal.studies.setup import Setup
from heal.studies.study import Cell, Value

Texts = Mapping[str, Mapping[str, str]]
"""Answers by method and sample."""


def evaluated(path: Path, tasks: Mapping[str, Task], answers: Mapping[str, Texts], **more: Any) -> Evaluated:
    """An evaluation with these answers, by task. `more`: fields of all records."""
    methods = dict.fromkeys(method for texts in answers.values() for method in texts)
    folder = Folder(path)
    tasks_described = {
        name: {
            "name": task.name,
            "options": {},
            "samples": len(task.samples()),
            "fingerprint": task.fingerprint,
            "decoding": {"max_new_tokens": task.max_new_tokens},
        }
        for name, task in tasks.items()
    }
    configuration = {
        "model": {"name": "none", "dtype": "float32", "device": "cpu", "weights": "0"},
        "tasks": tasks_described,
        "methods": {name: None if name == "plain" else {"name": "heal", "options": {}} for name in methods},
        **asdict(Settings()),
    }
    with folder.locked():
        folder.start(
            configuration, {"versions": {}}, {name: task.samples() for name, task in tasks.items()}, resume=False
        )
        with folder.appender() as file:
            file.add(
                [
                    _record(name, tasks[name], method, sample, texts[sample.id], more)
                    for name, methods in answers.items()
                    for method, texts in methods.items()
                    for sample in tasks[name].samples()
                    if sample.id in texts
                ]
            )
    return Evaluated.of(summarise(folder, tasks=tasks), folder)


def unscored(tasks: Mapping[str, Task], answers: Mapping[str, Texts]) -> Evaluated:
    """An evaluation with these answers, by task, and an empty summary."""
    records = [
        _record(name, tasks[name], method, sample, texts[sample.id], {})
        for name, methods in answers.items()
        for method, texts in methods.items()
        for sample in tasks[name].samples()
    ]
    samples = {name: tuple(task.samples()) for name, task in tasks.items()}
    return Evaluated(Summary(Path(), ()), samples, {record.key: record for record in records})


def _record(name: str, task: Task, method: str, sample: Sample, text: str, more: Mapping[str, Any]) -> Record:
    fired = None if method == "plain" else {"steps": 2, "changes": 8, "sizes": {"beta": 0.5}, "reason": None}
    fields: dict[str, Any] = {"tokens": 3, "finish": "stop", "fired": fired, "parse": task.parse(sample, text)}
    return Record(name, method, sample.id, 0, text, **{**fields, **more})


def wrong_yes(setup: Setup, count: int, distribution: str = "natural") -> dict[str, str]:
    """Correct answers to all questions of POPE, except that the first `count` absent objects are affirmed."""
    samples = setup.task("pope", distribution).samples()
    absent = [sample.id for sample in samples if sample.truth["label"] == "no"][:count]
    return {s.id: "Yes" if s.id in absent else str(s.truth["label"]).capitalize() for s in samples}


def captions(setup: Setup, *texts: str, distribution: str = "natural") -> dict[str, str]:
    """One description for each image, in order."""
    return {s.id: text for s, text in zip(setup.captions(distribution), texts, strict=True)}


def value(cells: Mapping[str, Cell], heading: str) -> Value:
    found = cells[heading]
    assert isinstance(found, Value)
    return found
