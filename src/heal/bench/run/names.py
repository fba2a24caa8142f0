"""Tasks and methods by short names, `heal:alpha=0.5`: how they are written, and what records are filed under."""

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
    """`plain,heal:alpha=0.5,interval=5` is two names: a comma before `option=value` belongs to the options."""
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
    """By their names, `plain` for the model as it is."""
    return named_methods([None if text == PLAIN else parse(text) for text in split(texts)])


def tasks_from(texts: Iterable[str], data: Path | None = None) -> dict[str, Task]:
    """By their names, with options as `mini-pope:count=20,splits=random+popular`."""
    return named_tasks([_task(text, data) for text in split(texts)])


def _task(text: str, data: Path | None) -> Task:
    name, _, rest = text.partition(":")
    return catalogue.make(name.strip(), data, values.items(rest, name.strip()))


def named_tasks(tasks: Tasks) -> dict[str, Task]:
    found = dict(tasks) if isinstance(tasks, Mapping) else _unique([(task_name(t), t) for t in tasks], "task")
    if not found:
        raise ConfigError("there is no task: name at least one")
    return found


def named_methods(methods: Methods) -> dict[str, Method | None]:
    """None is the plain model. The first is what the others are compared with."""
    given = methods.items() if isinstance(methods, Mapping) else [(method_name(m), m) for m in methods]
    found = _unique(list(given), "method")
    if not found:
        raise ConfigError("there is no method: name at least one, or plain")
    return found


def task_name(task: Task) -> str:
    """Its name, and what differs from the defaults; the data folder is where it is, not what it is."""
    return _name(task.name, task, leave_out=("data",))


def method_name(method: Method | None) -> str:
    """As `parse` reads it."""
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
