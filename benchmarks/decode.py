"""Decoding speed of the plain model and the paths of HEAL: writes results.json and prints a table.

Run on an idle machine: `make speed`, or `python benchmarks/decode.py --rounds 7`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from heal.methods import HEAL, parse
from heal.speed import Setup, Speed, measure
from heal.speed_model import PRESETS
from heal.tracing import versions

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--method", default="heal", help="the method, with options")
    options = parser.parse_args()
    found = [
        # the reference at batch 8 needs many gigabytes and gives no new information
        measure(
            Setup(
                preset,
                options.layers,
                batch,
                rounds=options.rounds,
                method=_method(options.method),
                reference=batch == 1,
            ),
            progress=_note,
        )
        for preset in PRESETS
        for batch in options.batches
    ]
    record = {"machine": platform.machine(), "versions": versions(), "results": [s.to_dict() for s in found]}
    (HERE / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    print(table(found))


def _method(text: str) -> HEAL:
    found = parse(text)
    if not isinstance(found, HEAL):
        raise SystemExit(f"--method must be heal with options, not {text}")
    return found


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def table(found: list[Speed]) -> str:
    lines = [
        "| preset | batch | variant | ms | ratio (quartiles of rounds) | refresh ms | prefill | state, % KV |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in found:
        share = 100 * s.extra_bytes_per_layer / s.kv_bytes_per_layer
        for own in s.arms:
            refresh, state = ("–", "–") if own.refresh_ms is None else (f"{own.refresh_ms:.1f}", f"{share:.2f}")
            lines.append(
                f"| {s.preset} | {s.batch} | {own.name}: {own.implementation} | {own.ms:.0f} "
                f"| **{own.ratio:.3f}** ({own.ratio_low:.3f} – {own.ratio_high:.3f}) | {refresh} "
                f"| {own.prefill_ratio:.3f} | {state} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
