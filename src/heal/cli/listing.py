"""`heal list models`, `heal list methods` and `heal list tasks`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, say, show

Entries = list[dict[str, Any]]


class What(StrEnum):
    models = "models"
    methods = "methods"
    tasks = "tasks"


def lists(
    what: Annotated[What, typer.Argument(help="What to list.")],
    options: Annotated[
        bool, typer.Option("--options", help="Describe every option of the methods or tasks.")
    ] = False,
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """List the supported architectures, the methods or the benchmarks."""
    output = chosen_format(form, as_json)
    found = {What.models: _models, What.methods: _methods, What.tasks: _tasks}[what](options)
    if output is Format.json:
        return emit({what.value: found})
    if output is Format.table:
        return {What.models: _print_models, What.methods: _print_methods, What.tasks: _print_tasks}[what](found)
    rows = _flat(found) if options and what is not What.models else found
    if output is Format.csv:
        return emit_csv(rows)
    cells = [["–" if value is None else str(value) for value in row.values()] for row in rows]
    show(Table([name.replace("_", " ") for name in rows[0]], cells), output)


def _flat(found: Entries) -> Entries:
    """One row per option."""
    return [{"of": entry["name"], **option} for entry in found for option in entry["options"]]


def _models(_: bool) -> Entries:
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


def _print_models(found: Entries) -> None:
    for m in found:
        extra = "" if m["core"] else "  (extra)"
        say(f"{m['family']:14s} {m['title']:20s} α {m['alpha']}  {m['examples']}{extra}")


def _methods(with_options: bool) -> Entries:
    from heal.methods import available

    return [
        {"name": name, "summary": method.summary, "paper": method.paper} | _options(method, with_options)
        for name, method in available().items()
    ]


def _options(kind: Any, wanted: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from heal.methods.options import options_of

    # the data folder has its own option on the command line
    return {"options": [asdict(o) for o in options_of(kind) if o.name != "data"]} if wanted else {}


def _print_methods(found: Entries) -> None:
    for m in found:
        say(f"{m['name']:10s} {m['summary']}\n{'':10s} {m['paper']}")
        _print_options(m)


def _print_options(entry: dict[str, Any]) -> None:
    for option in entry.get("options", ()):
        say(f"  {option['name']} = {option['default']}\n      {option['doc']}")


def _tasks(with_options: bool) -> Entries:
    from heal.bench.tasks.catalogue import available_tasks, needs_data

    return [
        {"name": n, "summary": task.summary, "needs_data": needs_data(n)} | _options(task, with_options)
        for n, task in available_tasks().items()
    ]


def _print_tasks(found: Entries) -> None:
    for task in found:
        say(f"{task['name']:12s} {task['summary']}{'  (needs --data)' if task['needs_data'] else ''}")
        _print_options(task)
