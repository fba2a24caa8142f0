"""What the run view shows: the results of a run folder, its samples with every answer, and its failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heal.bench.run.folder import Folder
from heal.bench.run.records import Key, Record
from heal.bench.score.bootstrap import Interval
from heal.bench.score.summary import Row, restore_task, summarise
from heal.bench.tasks.base import Sample, Task
from heal.errors import RunError
from heal.json_values import json_values
from heal.studies.comparison import LONG, comparison_rows
from heal.view.format import head, number
from heal.view.marks import EMBEDDED, Find, finder, marks
from heal.view.thumbnails import Thumbnails

SAMPLES = 500
"""Samples of each task in a page, the first ones."""
FAILURES = 1000
"""Failures listed in a page."""


def run_data(
    folder: str | Path,
    *,
    samples: int = SAMPLES,
    tasks: Mapping[str, Task] | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The data of a run view, plain JSON (docs/view.md).

    The first `samples` of each task are included with all answers; figures are always those of all samples. `tasks`
    are those that are not in the catalogue. Pictures come from the task, if its data is still there.
    """
    run = Folder(Path(folder))
    summary = summarise(run, tasks=tasks)
    configuration = run.description()["configuration"]
    records, stored = run.records(), run.samples()
    if not records:
        raise RunError(f"{run.path} has no answers yet: finish the run with --resume")
    methods = list(configuration["methods"])
    find = finder(_model(configuration))
    failures = [record for record in records.values() if record.error is not None]
    found = []
    for name, description in configuration["tasks"].items():
        task = (tasks or {}).get(name) or restore_task(description, run.path)
        own = _Task(name, task, methods, records, find, Thumbnails.of(task))
        rows = [_row(row) for row in summary.rows if row.task == name]
        found.append(
            {
                "name": name,
                "headline": task.headline,
                "higher_is_better": task.higher_is_better,
                "rows": rows,
                "total": len(stored[name]),
                "samples": [own.sample(sample) for sample in stored[name][:samples]],
                "pictures": own.pictures.sources,
            }
        )
    return head("run", title or Path(folder).resolve().name) | {
        "notes": list(notes),
        "model": _model(configuration),
        "seed": configuration.get("seed"),
        "methods": json_values(configuration["methods"]),
        "cost": {line.method: number(line.time_ratio) for line in comparison_rows(summary)},
        "tasks": found,
        "failed": len(failures),
        "failures": [
            {"task": r.task, "sample": r.sample, "method": r.method, "error": r.error} for r in failures[:FAILURES]
        ],
    }


def _model(configuration: Mapping[str, Any]) -> str:
    name = str(configuration.get("model", {}).get("name") or "")
    return EMBEDDED if name == EMBEDDED else name


class _Task:
    """The samples of one task with the answers of all methods."""

    def __init__(
        self,
        name: str,
        task: Task,
        methods: Sequence[str],
        records: Mapping[Key, Record],
        find: Find,
        pictures: Thumbnails,
    ) -> None:
        self.name, self.task, self.methods = name, task, methods
        self.records, self.find, self.pictures = records, find, pictures

    def sample(self, sample: Sample) -> dict[str, Any]:
        """A sample with its different texts, and for each method the index of its text."""
        texts: list[str] = []
        answers: list[dict[str, Any] | None] = []
        for method in self.methods:
            record = self.records.get(Key(self.name, method, sample.id))
            answers.append(None if record is None else self._answer(record, texts))
        judged = [self._judged(sample, text) for text in texts]
        return {
            "id": sample.id,
            "prompt": sample.prompt,
            "truth": _truth(sample.truth),
            "objects": _objects(sample.truth),
            "picture": self.pictures.index(sample),
            "texts": judged,
            "answers": answers,
            "tags": sorted(_tags(sample.truth) | {tag for text in judged for tag in text["tags"]}),
        }

    def _answer(self, record: Record, texts: list[str]) -> dict[str, Any]:
        if record.text is None:
            return {"text": None, "error": record.error}
        if record.text not in texts:
            texts.append(record.text)
        fired = record.fired
        return {
            "text": texts.index(record.text),
            "tokens": record.tokens,
            "finish": record.finish,
            "fired": None if fired is None else {name: fired.get(name) for name in ("steps", "changes", "reason")},
        }

    def _judged(self, sample: Sample, text: str) -> dict[str, Any]:
        """A text with its marks: object names, or the verdict on a yes/no question."""
        objects, label = _objects(sample.truth), sample.truth.get("label")
        parse = self.task.parse(sample, text) if objects is not None or label is not None else {}
        if objects is not None:
            counted = set(parse.get("mentions", ()))
            found = [mark for mark in marks(text, objects, self.find) if mark["category"] in counted]
            wrong = sorted({mark["category"] for mark in found if not mark["correct"]})
            return {"text": text, "marks": found, "wrong": bool(counted - set(objects)), "tags": _named(wrong)}
        answer = parse.get("answer")
        wrong_yes = label == "no" and answer == "yes"
        correct = None if label not in ("yes", "no") else answer == label
        return {"text": text, "marks": [], "wrong": wrong_yes, "correct": correct, "verdict": answer, "tags": []}


def _named(categories: Sequence[str]) -> list[str]:
    return [f"hallucinated: {category}" for category in categories]


def _objects(truth: Mapping[str, Any]) -> list[str] | None:
    """The objects in the picture, for tasks that score captions."""
    found = truth.get("objects")
    return sorted(map(str, found)) if isinstance(found, (list, tuple, set, frozenset)) else None


def _truth(truth: Mapping[str, Any]) -> str:
    """The reference in one line."""
    return "; ".join(f"{key}: {_short(value)}" for key, value in truth.items() if key != "objects")


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _tags(truth: Mapping[str, Any]) -> set[str]:
    """What samples can be filtered by: the splits, the subtask, the object asked for."""
    found = {str(name) for name in truth.get("splits") or ()}
    found |= {str(truth[key]) for key in ("subtask", "category", "type", "object") if isinstance(truth.get(key), str)}
    return found | {f"answer {truth['label']}"} if truth.get("label") in ("yes", "no") else found


def _row(row: Row) -> dict[str, Any]:
    """The results of one method on one task."""
    timed = row.mean_tokens >= LONG
    return {
        "method": row.method,
        "answered": row.answered,
        "failed": row.failed,
        "missing": row.missing,
        "asked": row.asked,
        "figures": {name: _interval(found) for name, found in row.figures.items()},
        "differences": row.differences and {name: _interval(found) for name, found in row.differences.items()},
        "equal_recall": row.equal_recall and _interval(row.equal_recall.mean),
        "changed": row.changed,
        "fired": row.fired,
        "reason": row.reason,
        "mean_tokens": number(row.mean_tokens),
        "ms_per_token": number(1000 * row.seconds_per_token) if timed else None,
        "time_ratio": number(row.time_ratio) if timed else None,
        "memory": row.memory,
        "note": row.note,
    }


def _interval(found: Interval) -> list[float | None]:
    return [number(found.value), number(found.low), number(found.high)]
