"""Put the results of `heal detect eval` into docs/detection.md and docs/results/detection.json.

    python -m benchmarks.detection FOLDER

The folder is the `--out` of `heal detect eval`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.launches import ROOT, replaced
from heal.atomic_write import atomic_write

DOCUMENT = ROOT / "docs" / "detection.md"
RESULTS = ROOT / "docs" / "results"
FIGURES = ("auroc", "reliability", "learning-curve")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    stored = json.loads((folder / "table.json").read_text())
    atomic_write(RESULTS / "detection.json", (folder / "table.json").read_text())
    for name in FIGURES:
        if (folder / f"{name}.svg").is_file():
            atomic_write(RESULTS / f"detection-{name}.svg", (folder / f"{name}.svg").read_text())
    text = replaced(DOCUMENT.read_text(), "results", table(stored["verdicts"]))
    atomic_write(DOCUMENT, replaced(text, "curve", curve(stored["learning_curve"])))


def table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """AUROC of every score: one column for each set of words."""
    columns = [{own["name"]: shown(own["auroc"]) for own in one["figures"]} for one in verdicts]
    names = dict.fromkeys(name for own in columns for name in own)
    headings = [f"{one['kind']}, {one['mentions']}" for one in verdicts]
    lines = [f"| score | {' | '.join(headings)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in names:
        label = f"**{name}**" if name == "detector" else name.replace("_", r"\_")
        lines.append(f"| {label} | {' | '.join(own.get(name, '–') for own in columns)} |")
    counts = (f"{f['hallucinated']:,} of {f['words']:,}" for f in (one["figures"][0] for one in verdicts))
    lines.append(f"| hallucinated words | {' | '.join(counts)} |")
    return "\n".join(lines)


def shown(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:.3f} ({interval['low']:.3f} – {interval['high']:.3f})"


def curve(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Mean AUROC by the number of captions, over random choices of captions."""
    sizes = dict.fromkeys(size for own in found.values() for size in own)
    lines = [f"| captions | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for size in sizes:
        cells = [spread(own.get(size, [])) for own in found.values()]
        lines.append(f"| {int(size):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{sum(values) / len(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} – {max(values):.3f})"


if __name__ == "__main__":
    main()
