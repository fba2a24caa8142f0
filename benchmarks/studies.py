"""Put the results of `heal study` into the documents: docs/studies.md and docs/results/studies.

    python -m benchmarks.studies FOLDER…

Every folder is the `--out` of `heal study`. A study that is in several folders is taken from the first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.launches import ROOT, replaced
from heal.atomic_write import atomic_write
from heal.escape import markdown_cell
from heal.studies.study import Study, available

DOCUMENT = ROOT / "docs" / "studies.md"
RESULTS = ROOT / "docs" / "results" / "studies"
LARGEST = 120_000
"""Bytes of a figure that is copied."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    folders: Sequence[Path] = parser.parse_args().folders
    parts = []
    for study in available().values():
        place = next((f / study.name for f in folders if (f / study.name / "verdict.txt").is_file()), None)
        if place is not None:
            atomic_write(RESULTS / f"{study.name}.md", (place / "table.md").read_text())
            parts.append(section(study, place))
    atomic_write(DOCUMENT, replaced(DOCUMENT.read_text(), "results", "\n\n".join(parts)))


def section(study: Study, place: Path) -> str:
    """The verdicts of a study, with what it was measured on, and its figure if it is small."""
    stored: dict[str, Any] = json.loads((place / "table.json").read_text())
    setup = stored["setup"]
    images = f"{setup['samples'] or 100} {' and '.join(setup['distributions'])} images of the {setup['split']} split"
    lines = [
        f"### {study.name}",
        "",
        f"{study.paper[0].upper()}{study.paper[1:]}. {images}. [All numbers](results/studies/{study.name}.md)",
        "",
    ]
    lines += ["| verdict | |", "|---|---|"]
    lines += [f"| {v['outcome']} | {markdown_cell(v['text'])} |" for v in stored["verdicts"]]
    figure = place / "figure.svg"
    if figure.is_file() and figure.stat().st_size <= LARGEST:
        atomic_write(RESULTS / f"{study.name}.svg", figure.read_text())
        lines += ["", f"![{study.summary}](results/studies/{study.name}.svg)"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
