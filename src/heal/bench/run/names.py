"""Short names of tasks and methods, such as `heal:alpha=0.5`, which also identify records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from heal import values
from heal.bench.tasks import catalogue
from heal.bench.tasks.base import Task
from heal.errors import ConfigError
from heal.methods import Combined, Method, parse

PLAIN = "plain"

T = TypeVar("T")

Tasks = Sequence[Task] | Mapping[str, Task]
Methods = Sequence[Method | None] | Mapping[str, Method | None]


def split(texts: Iterable[str]) -> list[str]:
    """Split at commas, except before `option=value`: `plain,heal:alpha=0.5,interval=5` gives two names."""
    found: list[str] = []
    for text in texts:
        first = len(found)
        for piece in filter(None, (piece.strip() for piece in text.split(","))):
            if "=" in piece.partition(":")[0] and len(found) > first:
                found[-1] += f",{piece}"
            else:
                found.append(piece)
    return found


def methods_from(texts: Iterable[str]) -> dict[str, Method | None]:
    """Parse methods. `plain` is the unmodified model."""
    return named_methods([None if text == PLAIN else parse(text) for text in split(texts)])


def tasks_from(texts: Iterable[str], data: Path | None = None) -> dict[str, Task]:
    """Parse tasks with options, as in `mini-pope:count=20,splits=random+popular`."""
    return named_tasks([_task(text, data) for text in split(texts)])


def _task(text: str, data: Path | None) -> Task:
    name, _, rest = text.partition(":")
    return catalogue.make(name.strip(), data, values.items(rest, name.strip()))


def named_tasks(tasks: Tasks) -> dict[str, Task]:
    found = dict(tasks) if isinstance(tasks, Mapping) else _unique([(task_name(t), t) for t in tasks], "task")
    if not found:
        raise ConfigError("no task is given: name at least one")
    return found


def named_methods(methods: Methods) -> dict[str, Method | None]:
    """None is the plain model. The others are compared with the first method."""
    given = methods.items() if isinstance(methods, Mapping) else [(method_name(m), m) for m in methods]
    found = _unique(list(given), "method")
    if not found:
        raise ConfigError("no method is given: name at least one, or plain")
    return found


def task_name(task: Task) -> str:
    """The name of a task with its non-default options. The data folder is not part of the name."""
    return _name(task.name, task, leave_out=("data",))


def method_name(method: Method | None) -> str:
    """The name of a method in the format that `parse` reads."""
    if isinstance(method, Combined):
        return "+".join(map(method_name, method.parts))
    return PLAIN if method is None else _name(method.name, method)


def _name(name: str, value: Any, leave_out: Sequence[str] = ()) -> str:
    chosen = [
        f"{f.name}={_word(given)}"
        for f in (fields(value) if is_dataclass(value) else ())
        if f.name not in leave_out and (given := getattr(value, f.name)) != _default(f)
    ]
    return f"{name}:{','.join(chosen)}" if chosen else name


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _unique(pairs: Sequence[tuple[str, T]], kind: str) -> dict[str, T]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the {kind} {name} is named twice")
    return dict(pairs)
