"""All benchmarks by name, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from heal.bench.task import Task
from heal.errors import ConfigError, shortened

_PLACES = {
    "mini-pope": ("heal.bench.miniature", "MiniPope"),
    "mini-chair": ("heal.bench.miniature", "MiniChair"),
    "mini-mme": ("heal.bench.miniature", "MiniMme"),
    "pope": ("heal.bench.pope", "Pope"),
    "chair": ("heal.bench.chair", "Chair"),
    "mme": ("heal.bench.mme", "Mme"),
    "mmhal": ("heal.bench.mmhal", "MmHal"),
    "llava-bench": ("heal.bench.llava_bench", "LlavaBench"),
    "blink-twice": ("heal.bench.blink", "BlinkTwice"),
}


def tasks() -> dict[str, type[Task]]:
    """Every benchmark by its name."""
    return {name: getattr(import_module(module), kind) for name, (module, kind) in _PLACES.items()}


def create(name: str, data: str | Path | None = None, **options: Any) -> Task:
    """A benchmark with its options, given as values or as the words of a command line (`splits="random+popular"`)."""
    if name not in _PLACES:
        raise ConfigError(f"there is no task {name!r}: choose one of {', '.join(_PLACES)}")
    kind = tasks()[name]
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for option in options:
        if option not in known or option == "data":
            choices = ", ".join(n for n in known if n != "data")
            raise ConfigError(f"{name} has no option {option!r}: it has {choices}")
    hints = get_type_hints(kind)
    values = {option: _value(f"{name}:{option}", hints[option], value) for option, value in options.items()}
    if "data" in known:
        values["data"] = _folder(name, data)
    return kind(**values)


def needs_data(name: str) -> bool:
    """Whether a folder of official data must be given."""
    return any(f.name == "data" and f.default is MISSING for f in fields(tasks()[name]))  # type: ignore[arg-type]


def _folder(name: str, data: str | Path | None) -> Path:
    if data is None:
        raise ConfigError(f"{name} needs official data: give its folder with --data (in Python: data=)")
    path = Path(data)
    if not path.is_dir():
        raise ConfigError(f"the data folder {path} does not exist")
    return path


def _value(where: str, kind: Any, value: Any) -> Any:
    """The option's own type, from a word of a command line."""
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ConfigError(f"{where} must be a whole number, not {value!r}") from None
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{where} must be true or false, not {value!r}")
        return value.lower() == "true"
    if kind is str:
        return value
    return tuple(value.split("+")) if str(kind).startswith("tuple") else Path(value)


def again(name: str, options: Mapping[str, Any]) -> Task:
    """A benchmark from what `options_of` gave, with every type checked. Its data need not be there."""
    kind = tasks()[name]
    known, hints = {f.name: f for f in fields(kind)}, get_type_hints(kind)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"{name} has no option {shortened(option)!r}")
        values[option] = _stored(f"{name}:{option}", hints[option], value)
    if missing := [option for option, f in known.items() if f.default is MISSING and option not in values]:
        raise ConfigError(f"{name} needs the option {missing[0]}")
    return kind(**values)


def _stored(where: str, hint: Any, value: Any) -> Any:
    """The option's own type, from a value of JSON."""
    if hint in (int, bool, str):
        if type(value) is not hint:
            raise ConfigError(f"{where} must be a {hint.__name__}, not {shortened(repr(value), 40)}")
        return value
    if str(hint).startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{where} must be a list of texts, not {shortened(repr(value), 40)}")
        return tuple(value)
    if value is None and hint is not Path:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be a path, not {shortened(repr(value), 40)}")
    return Path(value)


def options_of(task: Task) -> Mapping[str, Any]:
    """What the task was made with, as JSON can hold it."""
    return {f.name: _plain(getattr(task, f.name)) for f in fields(task)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
