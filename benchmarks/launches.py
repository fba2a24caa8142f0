"""Launches, host synchronisations and bytes per token of every method, as JSON and as the tables of docs/speed.md."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from heal.atomic_write import atomic_write
from heal.cli.output import markdown
from heal.cli.speed_extra import count_table
from heal.cost_model import DEVICES, LABEL, Prediction, counted, predict
from heal.launches import Launches, count, embedded_subject, random_subject

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "docs" / "results" / "launches.json"
MOST = 8
SUMMARY = ((1, 1024), (1, 8192), (8, 1024), (8, 8192), (32, 8192))
"""Batches and contexts in the document; the JSON has all of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="*", default=[], help="count the random models of these presets too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    subjects = [embedded_subject(), *(random_subject(name, 2, 1, torch.float32) for name in given.presets)]
    found = [count(subject, progress=note) for subject in subjects]
    launches = counted({m.name: m.mean.launches for m in found[0].methods})
    rows = [row for device in DEVICES.values() for row in predict(device, launches)]
    record = {"counts": [f.to_dict() for f in found], "predictions": [row.to_dict() for row in rows]}
    atomic_write(RESULTS, (json.dumps(record, indent=1) + "\n").encode())
    text = DOCUMENT.read_text()
    for name, part in {
        "counts": _counts(found),
        "operations": _operations(found[0]),
        "predicted": _predicted(rows),
    }.items():
        text = replaced(text, name, part)
    atomic_write(DOCUMENT, text.encode())


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def replaced(text: str, name: str, part: str) -> str:
    """The document with another text between the two comments of this name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{part}\n{end}", text, flags=re.DOTALL)


def _counts(found: Sequence[Launches]) -> str:
    parts = []
    for one in found:
        table = count_table(one)
        parts.append(f"{table.title}:\n\n{markdown(table)}")
        parts += [f"{name} was left out: {reason}.\n" for name, reason in one.skipped.items()]
    return "\n".join(parts)


def _operations(found: Launches) -> str:
    lines = ["| method | launched most, per token and layer | by file |", "|---|---|---|"]
    for one in found.methods:
        if one.name.startswith(("plain", "heal")):
            groups = [_most(one.operations), _most({f: n for f, n in one.files.items() if f.endswith(".py")})]
            lines.append(f"| {one.name} | {' | '.join(groups)} |")
    return "\n".join(lines)


def _most(groups: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {n:.1f}" for name, n in list(groups.items())[:MOST])


def _predicted(rows: Sequence[Prediction]) -> str:
    lines = [
        f"| {LABEL} | path | " + " | ".join(f"batch {b}, {c // 1024}k" for b, c in SUMMARY) + " |",
        "|---|---|" + "---|" * len(SUMMARY),
    ]
    keys = dict.fromkeys((row.device, row.model, row.path) for row in rows)
    cells = {(r.device, r.model, r.path, r.batch, r.context): r for r in rows}
    for key in keys:
        own = [cells[(*key, *size)] for size in SUMMARY]
        ratios = " | ".join(f"{r.overlapped:.2f} / {r.serial:.2f} / {r.captured:.2f}" for r in own)
        lines.append(f"| {key[0]}, {key[1]} | {key[2]} | {ratios} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
