"""Time and memory per token against context and batch: a figure, a JSON file and a table in docs/speed.md."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from heal.atomic_write import atomic_write
from heal.growth import BATCHES, CONTEXTS, Growth, measure
from heal.plots.figure import save
from heal.plots.growth import growth_figure

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.launches import DOCUMENT, replaced

RESULTS = DOCUMENT.parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=max(CONTEXTS), help="longest context")
    given = parser.parse_args()
    contexts = [c for c in CONTEXTS if c <= given.most]
    found = measure(
        contexts=contexts, batches=BATCHES, progress=lambda text: print(text, file=sys.stderr, flush=True)
    )
    record = {"machine": platform.machine(), **asdict(found)}
    atomic_write(RESULTS / "growth.json", (json.dumps(record, indent=1) + "\n").encode())
    for kind in ("svg", "png"):
        save(growth_figure(found), RESULTS / f"growth.{kind}")
    atomic_write(DOCUMENT, replaced(DOCUMENT.read_text(), "growth", table(found)).encode())


def table(found: Growth) -> str:
    lines = [
        "| context | batch | plain ms | HEAL ms | ratio | KV MB | HEAL's state MB | workspace MB | calibrated |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.context} | {p.batch} | {p.plain_ms:.2f} | {p.heal_ms:.2f} | {p.ratio:.2f} | {p.kv_bytes / 1e6:.1f} "
        f"| {p.state_bytes / 1e6:.3f} | {p.workspace_bytes / 1e6:.2f} | {p.calibrated:.0%} |"
        for p in found.points
    ]
    fitted = [
        f"| {line.name} | {line.slope * 1e3:.3g} µs | {line.offset:.3g} ms | {line.r_squared:.4f} |"
        for line in found.lines
    ]
    return "\n".join([*lines, "", "| line | per position or row | offset | R² |", "|---|---|---|---|", *fitted])


if __name__ == "__main__":
    main()
