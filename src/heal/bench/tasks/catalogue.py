"""The benchmarks by name, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from heal import values
from heal.bench.tasks.base import Task
from heal.bench.tasks.task_views import TaskView
from heal.errors import ConfigError, shortened

_PLACES = {
    "mini-pope": ("heal.bench.tasks.miniature", "MiniPope"),
    "mini-chair": ("heal.bench.tasks.miniature", "MiniChair"),
    "mini-mme": ("heal.bench.tasks.miniature", "MiniMme"),
    "pope": ("heal.bench.tasks.pope", "Pope"),
    "chair": ("heal.bench.tasks.chair", "Chair"),
    "mme": ("heal.bench.tasks.mme", "Mme"),
    "mmhal": ("heal.bench.tasks.mmhal", "MmHal"),
    "llava-bench": ("heal.bench.tasks.llava_bench", "LlavaBench"),
    "blink-twice": ("heal.bench.tasks.blink", "BlinkTwice"),
}

_RENAMED = {
    "mini-pope": {"images": "count"},
    "mini-chair": {"images": "count"},
    "mini-mme": {"images": "count"},
    "chair": {"number": "count"},
}
"""Former names of options."""


def available_tasks() -> dict[str, type[Task]]:
    """Every benchmark by its name."""
    return {name: getattr(import_module(module), kind) for name, (module, kind) in _PLACES.items()}


def create(name: str, data: str | Path | None = None, **options: Any) -> Task:
    """Create a benchmark. Options are values or command-line strings (`splits="random+popular"`)."""
    return make(name, data, options)


def make(name: str, data: str | Path | None, options: Mapping[str, Any]) -> Task:
    """Like `create`, with options as a mapping."""
    if name not in _PLACES:
        raise ConfigError(f"there is no task {name!r}: choose one of {', '.join(_PLACES)}")
    kind, known = available_tasks()[name], option_names(name)
    for option in options:
        if option in _RENAMED.get(name, {}):
            raise ConfigError(f"{name} has no option {option!r} any more: write {_RENAMED[name][option]}")
        if option not in known:
            raise ConfigError(f"{name} has no option {option!r}: it has {', '.join(known)}")
    hints = get_type_hints(kind)
    given = {option: _value(f"{name}:{option}", hints[option], value) for option, value in options.items()}
    if needs_data(name):
        given["data"] = _folder(name, data)
    return kind(**given)


def option_names(name: str) -> list[str]:
    """All options except the data folder."""
    return [f.name for f in fields(available_tasks()[name]) if f.name != "data"]  # type: ignore[arg-type]


def current_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a stored run under their current names."""
    return {_RENAMED.get(name, {}).get(option, option): value for option, value in options.items()}


def needs_data(name: str) -> bool:
    """Whether the task needs a folder of official data."""
    return any(f.name == "data" and f.default is MISSING for f in fields(available_tasks()[name]))  # type: ignore[arg-type]


def _folder(name: str, data: str | Path | None) -> Path:
    if data is None:
        raise ConfigError(f"{name} needs official data: give its folder with --data (in Python: data=)")
    path = Path(data)
    try:
        found = path.is_dir()
    except (OSError, ValueError):  # not a valid path
        found = False
    if not found:
        raise ConfigError(f"the data folder {shortened(path, 200)} does not exist")
    return path


def _value(where: str, kind: Any, value: Any) -> Any:
    """Convert a command-line string to the type of the option."""
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if kind is str:
        return value  # may be empty
    if kind == Path | None:
        kind = Path  # a folder may be called none
    if kind is Path and not value:
        raise ConfigError(f"{where} cannot be empty: write a path")
    return values.convert(value, kind, where)


def restore(name: str, options: Mapping[str, Any], whole: bool = False) -> Task:
    """Recreate a benchmark from the result of `options_of`, with type checks. Its data is not needed.

    `whole`: every option must be given; otherwise missing options have their defaults.
    """
    kind = available_tasks()[name]
    known, hints = {f.name: f for f in fields(kind)}, get_type_hints(kind)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"{name} has no option {shortened(option)!r}")
        values[option] = _stored(f"{name}:{option}", hints[option], value)
    if missing := [option for option, f in known.items() if (whole or f.default is MISSING) and option not in values]:
        raise ConfigError(f"{name} needs the option {missing[0]}")
    return kind(**values)


def _stored(where: str, hint: Any, value: Any) -> Any:
    """Convert a JSON value to the type of the option."""
    if hint in (int, bool, str):
        if type(value) is not hint:
            raise ConfigError(f"{where} must be a {hint.__name__}, not {shortened(repr(value), 40)}")
        return value
    if str(hint).startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{where} must be a list of strings, not {shortened(repr(value), 40)}")
        return tuple(value)
    if value is None and hint is not Path:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be a path, not {shortened(repr(value), 40)}")
    return Path(value)


def options_of(task: Task) -> Mapping[str, Any]:
    """The options of a task as JSON values; of a part of a task, those of the whole."""
    if isinstance(task, TaskView):
        return options_of(task.task)
    return {f.name: _plain(getattr(task, f.name)) for f in fields(task)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
