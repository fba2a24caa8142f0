"""For maintainers: stored results of a run next to docs/results.md, with all figures and intervals but no answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.atomic_write import atomic_write
from heal.bench.run.folder import Folder
from heal.bench.run.runner import method_options
from heal.bench.score.bootstrap import Interval
from heal.bench.score.equal_recall import EqualRecall
from heal.bench.score.summary import Row, Summary, summarise
from heal.bench.tasks.base import Task
from heal.bench.tasks.catalogue import current_options, options_of
from heal.errors import DataError
from heal.json_values import json_values
from heal.methods import Method

DIGITS = 4
SUFFIX = ".json"


@dataclass(frozen=True)
class StoredRun:
    """A finished run: configuration, environment and summary."""

    configuration: Mapping[str, Any]
    environment: Mapping[str, Any]
    summary: Summary

    @property
    def weights(self) -> str:
        """Fingerprint of the model's weights."""
        return str(self.configuration["model"]["weights"])

    def matches(self, tasks: Mapping[str, Task], methods: Mapping[str, Method | None]) -> bool:
        """Whether the run has these tasks and methods."""
        asked = {name: {"name": task.name, "options": options_of(task)} for name, task in tasks.items()}
        there = self.configuration["tasks"]
        own = {
            name: {"name": task["name"], "options": current_options(task["name"], task["options"])}
            for name, task in there.items()
        }
        return own == json_values(asked) and self.configuration["methods"] == json_values(method_options(methods))


def load_finished(path: Path) -> StoredRun | None:
    """Load the run in a folder; None if it is missing or unfinished."""
    folder = Folder(path)
    if not (path / "run.json").exists():
        return None
    described, summary = folder.description(), summarise(folder)
    return None if summary.missing else StoredRun(described["configuration"], described["environment"], summary)


def store(run: StoredRun, path: Path) -> None:
    rows = [_rounded(json_values(asdict(row))) for row in run.summary.rows]
    head = {"configuration": run.configuration, "environment": run.environment}
    lines = [
        json.dumps(json_values(head), ensure_ascii=False),
        *(json.dumps(row, ensure_ascii=False) for row in rows),
    ]
    atomic_write(path, "[\n" + ",\n".join(lines) + "\n]\n")  # one line per row, so that diffs are readable


def load_stored(path: Path) -> StoredRun | None:
    """Load the results that `store` has written; None if there are none."""
    if not path.exists():
        return None
    try:
        head, *rows = strict_json.read(path)
        summary = Summary(path, tuple(_row(row) for row in rows))
        return StoredRun(head["configuration"], head["environment"], summary)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a file of stored results ({error}): delete it and measure again") from error


def _row(record: Mapping[str, Any]) -> Row:
    values = dict(record)
    for name in ("figures", "differences"):
        if values[name] is not None:
            values[name] = {k: _interval(v) for k, v in values[name].items()}
    if (found := values.get("equal_recall")) is not None:
        parts = {k: _interval(v) if isinstance(v, dict) else _number(v) for k, v in found.items()}
        values["equal_recall"] = EqualRecall(**parts)  # type: ignore[arg-type]
    for field in fields(Row):
        if field.type == "float":
            values[field.name] = _number(values[field.name])
    return Row(**values)


def _interval(record: Mapping[str, float | None]) -> Interval:
    return Interval(*(_number(record[name]) for name in ("value", "low", "high")))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return value
