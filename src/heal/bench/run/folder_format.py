"""The format of run.json and samples.jsonl, checked on reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heal import strict_json
from heal.bench.tasks.base import ImageSource, Sample
from heal.errors import RunError, shortened

FORMAT = 1
"""Format version of a run folder. Newer formats are refused."""


def read_description(path: Path) -> dict[str, Any]:
    """Read run.json: `configuration` and `environment`."""
    found = strict_json.read(path, RunError)
    if not isinstance(found, dict) or not isinstance(found.get("configuration"), dict):
        raise RunError(f"{path} does not describe a run: it has no configuration")
    form = found.get("format", FORMAT)  # the first format had no version number
    if type(form) is not int or form < 1:
        raise RunError(f"{path} does not describe a run: its format must be a number of 1 or more")
    if form > FORMAT:
        raise RunError(f"{path} has format {form}, newer than {FORMAT}: update heal to read it")
    if not isinstance(found.setdefault("environment", {}), dict):
        raise RunError(f"{path}: environment must be an object")
    _check(found["configuration"], _CONFIGURATION, "configuration", path)
    for name, task in found["configuration"]["tasks"].items():
        _check({"left_out": 0, **task} if isinstance(task, dict) else task, _TASK, f"tasks.{shortened(name)}", path)
    for name, method in found["configuration"]["methods"].items():
        if method is not None:
            _check(method, _METHOD, f"methods.{shortened(name)}", path)
    return found


def read_samples(path: Path, image_source: ImageSource) -> dict[str, list[Sample]]:
    """Read samples.jsonl, by task, in the order of the file."""
    found: dict[str, list[Sample]] = {}
    for number, value in strict_json.lines(strict_json.read_text(path, RunError), path, RunError):
        _check(value, _SAMPLE, f"line {number}", path)
        if odd := set(value) - set(_SAMPLE):
            raise RunError(f"{path}, line {number} has `{shortened(min(odd))}`, which is not a field of a sample")
        task = value.pop("task")
        found.setdefault(task, []).append(Sample(**value, image_source=image_source))
    return found


Rule = tuple[Callable[[Any], bool], str]


def _check(value: Any, rules: Mapping[str, Rule], where: str, path: Path) -> None:
    if not isinstance(value, dict):
        raise RunError(f"{path}: {where} must be an object")
    for name, (right, what) in rules.items():
        if name not in value:
            raise RunError(f"{path}: {where} has no `{name}`: it is damaged or comes from another version of heal")
        if not right(value[name]):
            raise RunError(f"{path}: {where}.{name} must be {what}")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _named(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(value)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _positive_or_none(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


_CONFIGURATION: Mapping[str, Rule] = {
    "model": (_object, "an object"),
    "tasks": (_named, "an object with at least one task"),
    "methods": (_named, "an object with at least one method"),
    "seed": (_count, "a whole number of 0 or more"),
    "limit": (_positive_or_none, "a whole number of 1 or more, or null"),
    "batch_size": (_positive_or_none, "a whole number of 1 or more"),
    "max_new_tokens": (_positive_or_none, "a whole number of 1 or more, or null"),
    "generate": (_object, "an object"),
}
_TASK: Mapping[str, Rule] = {
    "name": (_text, "a string"),
    "options": (_object, "an object"),
    "samples": (_count, "a whole number of 0 or more"),
    "fingerprint": (_text, "a string"),
    "decoding": (_object, "an object"),
    "left_out": (_count, "a whole number of 0 or more"),
}
_METHOD: Mapping[str, Rule] = {"name": (_text, "a string"), "options": (_object, "an object")}
_SAMPLE: Mapping[str, Rule] = {
    "task": (_text, "a string"),
    "id": (_text, "a string"),
    "unit": (_text, "a string"),
    "prompt": (_text, "a string"),
    "truth": (_object, "an object"),
}
