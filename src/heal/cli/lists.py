"""`heal list models`, `heal list methods` and `heal list tasks`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from heal.cli.common import AsJson, emit


class What(StrEnum):
    models = "models"
    methods = "methods"
    tasks = "tasks"


def lists(
    what: Annotated[What, typer.Argument(help="models, methods or tasks")],
    options: Annotated[
        bool, typer.Option("--options", help="With methods: every option, its default and meaning.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The architectures that work, the methods with their options, or the benchmarks."""
    if what is What.models:
        found = _models()
        return emit({"models": found}) if as_json else _print_models(found)
    if what is What.tasks:
        return emit({"tasks": _tasks()}) if as_json else _print_tasks(_tasks())
    known = _methods(options)
    return emit({"methods": known}) if as_json else _print_methods(known)


def _models() -> list[dict[str, Any]]:
    from heal.architectures import ARCHITECTURES
    from heal.methods.heal import preset

    return [
        {
            "family": a.family,
            "title": a.title,
            "examples": a.examples,
            "core": a.core,
            "alpha": preset(a.family),
        }
        for a in ARCHITECTURES
    ]


def _print_models(found: list[dict[str, Any]]) -> None:
    for m in found:
        extra = "" if m["core"] else "  (extra)"
        print(f"{m['family']:14s} {m['title']:20s} α {m['alpha']}  {m['examples']}{extra}")


def _methods(with_options: bool) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from heal.methods import available
    from heal.methods.options import options_of

    found = []
    for name, method in available().items():
        entry: dict[str, Any] = {"name": name, "summary": method.summary, "paper": method.paper}
        if with_options:
            entry["options"] = [asdict(option) for option in options_of(method)]
        found.append(entry)
    return found


def _print_methods(found: list[dict[str, Any]]) -> None:
    for m in found:
        print(f"{m['name']:10s} {m['summary']}\n{'':10s} {m['paper']}")
        for option in m.get("options", ()):
            print(f"  {option['name']} = {option['default']}\n      {option['doc']}")


def _tasks() -> list[dict[str, Any]]:
    from heal.bench.catalogue import needs_data, tasks

    return [{"name": n, "summary": task.summary, "needs_data": needs_data(n)} for n, task in tasks().items()]


def _print_tasks(found: list[dict[str, Any]]) -> None:
    for task in found:
        print(f"{task['name']:12s} {task['summary']}{'  (needs --data)' if task['needs_data'] else ''}")
