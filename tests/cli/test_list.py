"""`heal list`."""

import csv
import io
from dataclasses import fields
from typing import Any

from heal import HEAL
from heal.architectures import ARCHITECTURES
from heal.bench import available_tasks
from tests.cli.test_cli import cli, strict_json


def test_list_models() -> None:
    found = strict_json(cli("list", "models", "--json").stdout)["models"]
    assert [m["family"] for m in found] == [a.family for a in ARCHITECTURES]
    alphas = {m["family"]: m["alpha"] for m in found}
    assert (alphas["llava"], alphas["qwen2_5_vl"]) == (0.5, 0.4)
    lines = cli("list", "models").stdout.splitlines()
    assert len(lines) == len(ARCHITECTURES)
    assert all(line.split()[0] == a.family for line, a in zip(lines, ARCHITECTURES, strict=True))
    assert [line.endswith("(extra)") for line in lines] == [not a.core for a in ARCHITECTURES]


def test_list_methods() -> None:
    found = strict_json(cli("list", "methods", "--json").stdout)["methods"]
    (entry,) = (m for m in found if m["name"] == "heal")
    assert entry == {"name": "heal", "summary": HEAL.summary, "paper": HEAL.paper}
    assert HEAL.summary in cli("list", "methods").stdout


def test_list_options() -> None:
    found = strict_json(cli("list", "methods", "--options", "--json").stdout)["methods"]
    (entry,) = (m for m in found if m["name"] == "heal")
    assert [o["name"] for o in entry["options"]] == [f.name for f in fields(HEAL)]
    assert all(o["doc"] and o["type"] for o in entry["options"])
    text = cli("list", "methods", "--options").stdout
    assert all(f"  {o['name']} = {o['default']}\n      {o['doc']}" in text for o in entry["options"])


def test_list_options_of_tasks() -> None:
    found = strict_json(cli("list", "tasks", "--options", "--json").stdout)["tasks"]
    for entry in found:
        task: Any = available_tasks()[entry["name"]]
        names = [f.name for f in fields(task) if f.name != "data"]
        assert [o["name"] for o in entry["options"]] == names
        assert all(o["doc"] for o in entry["options"])
    (pope,) = (entry for entry in found if entry["name"] == "mini-pope")
    assert {"name": "count", "type": "int", "default": "100", "doc": "Number of scenes."} in pope["options"]
    assert "  count = 100\n      Number of scenes." in cli("list", "tasks", "--options").stdout


def test_lists_as_csv_and_markdown() -> None:
    rows = list(csv.DictReader(io.StringIO(cli("list", "methods", "--options", "--format", "csv").stdout)))
    assert [r["name"] for r in rows if r["of"] == "heal"] == [f.name for f in fields(HEAL)]
    lines = cli("list", "models", "--format", "md").stdout.splitlines()
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert len([line for line in lines if line]) == len(ARCHITECTURES) + 2
