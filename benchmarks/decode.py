"""Decoding speed of the plain model, HEAL and its reference implementation: writes results.json and prints a table.

Run on an idle machine: `make speed`, or `python benchmarks/decode.py --rounds 7`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from heal.speed import Setup, Speed, measure
from heal.speed_model import PRESETS
from heal.tracing import versions

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    found = [
        # the reference at batch 8 needs many gigabytes and gives no new information
        measure(Setup(preset, options.layers, batch, rounds=options.rounds, reference=batch == 1), progress=_note)
        for preset in PRESETS
        for batch in options.batches
    ]
    record = {"machine": platform.machine(), "versions": versions(), "results": [s.to_dict() for s in found]}
    (HERE / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    print(table(found))


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def table(found: list[Speed]) -> str:
    lines = [
        "| preset | batch | plain ms | HEAL ms | ratio (quartiles of rounds) | reference | prefill | state, % KV |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in found:
        reference = "–" if s.reference_ratio is None else f"{s.reference_ratio:.1f}×"
        lines.append(
            f"| {s.preset} | {s.batch} | {s.plain_ms:.0f} | {s.heal_ms:.0f} "
            f"| **{s.ratio:.3f}** ({s.ratio_low:.3f} – {s.ratio_high:.3f}) | {reference} | {s.prefill_ratio:.3f} "
            f"| {100 * s.extra_bytes_per_layer / s.kv_bytes_per_layer:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
