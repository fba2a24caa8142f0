"""The results of judging a detector: tables as Markdown, CSV and JSON, and figures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heal.atomic_write import atomic_write
from heal.bench.score.bootstrap import Interval
from heal.detect.evaluation import Verdict, calibration_error
from heal.escape import markdown_cell
from heal.json_values import json_values


def rows(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """One row for each kind of images, kind of mentions and score."""
    found = []
    for one in verdicts:
        place = {"images": one.kind, "mentions": one.mentions}
        if one.too_few:
            found.append({**place, "score": one.too_few})
        for own in one.figures:
            counts = {"words": own.words, "hallucinated": own.hallucinated}
            row: dict[str, Any] = {**place, "score": own.name, **counts}
            for measure in ("auroc", "auprc", "brier"):
                interval: Interval = getattr(own, measure)
                row |= {measure: interval.value, f"{measure} low": interval.low, f"{measure} high": interval.high}
            found.append(row)
    return found


def cells(verdicts: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text."""
    headings = ["images", "mentions", "score", "hallucinated", "AUROC", "AUPRC", "Brier"]
    found = []
    for one in verdicts:
        if one.too_few:
            found.append([one.kind, one.mentions, one.too_few, "", "", "", ""])
        found += [
            [
                one.kind,
                one.mentions,
                own.name,
                f"{own.hallucinated} of {own.words}",
                *(shown(interval) for interval in (own.auroc, own.auprc, own.brier)),
            ]
            for own in one.figures
        ]
    return headings, found


def overview(verdicts: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    """AUROC without intervals: one row for each score, one column for each set of words."""
    known = [one for one in verdicts if one.figures]
    values = [{own.name: f"{own.auroc.value:.3f}" for own in one.figures} for one in known]
    names = dict.fromkeys(name for own in values for name in own)
    headings = ["score", *(f"{one.kind}, {one.mentions}" for one in known)]
    return headings, [[name, *(own.get(name, "") for own in values)] for name in names]


def gain_cells(verdicts: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    headings = ["images", "mentions", "score", "over", "gain of AUROC"]
    return headings, [
        [one.kind, one.mentions, own.name, own.over, shown(own.auroc, sign="+")]
        for one in verdicts
        for own in one.gains
    ]


def reliability_cells(verdicts: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    headings = ["images", "mentions", "mean risk", "share of hallucinated words", "words"]
    return headings, [
        [one.kind, one.mentions, f"{own.risk:.3f}", shown(own.share), str(own.words)]
        for one in verdicts
        for own in one.reliability
    ]


def shown(interval: Interval, sign: str = "") -> str:
    """`0.91 (0.90 to 0.92)`."""
    value, low, high = (f"{number:{sign}.3f}" for number in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


def sentences(verdicts: Sequence[Verdict]) -> list[str]:
    """What the results say, with the gain over what needs no heads first."""
    found = []
    for one in verdicts:
        if one.too_few:
            found.append(f"{one.kind}, {one.mentions} mentions: {one.too_few}")
            continue
        best = one.figures[0]
        text = f"{one.kind}, {one.mentions} mentions: AUROC {shown(best.auroc)}"
        gain = next((own for own in one.gains if own.over == "without heads"), None)
        if gain is not None:
            what = "the heads add" if gain.auroc.excludes_zero else "the heads add nothing that exceeds chance:"
            text += f"; {what} {shown(gain.auroc, '+')}"
        error = calibration_error(one.reliability)
        found.append(f"{text}; mean calibration error {error:.3f}")
    return found


def record(verdicts: Sequence[Verdict], **told: Any) -> dict[str, Any]:
    """Everything with full precision."""
    return {**told, "verdicts": [asdict(one) for one in verdicts]}


def write(out: Path, verdicts: Sequence[Verdict], told: Mapping[str, Any], curves: Mapping[str, Any]) -> None:
    """Write table.md, table.csv, table.json and the figures. `curves`: of `learning_curve`, or empty."""
    from heal.plots.detection import comparison, learning_curve, reliability
    from heal.plots.figure import save

    drawn = {"auroc": comparison(verdicts), "reliability": reliability(verdicts)}
    if curves:
        drawn["learning-curve"] = learning_curve(curves)
    for name, figure in drawn.items():
        save(figure, out / f"{name}.png", dpi=150)
        save(figure, out / f"{name}.svg")
    whole = json_values(record(verdicts, **told, learning_curve=curves))
    atomic_write(out / "table.json", json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    atomic_write(out / "table.csv", csv_text(rows(verdicts)))
    atomic_write(out / "table.md", markdown(verdicts))


def csv_text(found: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in found for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def markdown(verdicts: Sequence[Verdict]) -> str:
    lines = ["# Detection of hallucinated object words", "", *(f"- {line}" for line in sentences(verdicts))]
    for headings, found in (cells(verdicts), gain_cells(verdicts), reliability_cells(verdicts)):
        lines += ["", f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
        lines += [f"| {' | '.join(map(markdown_cell, row))} |" for row in found]
    return "\n".join([*lines, "", "In brackets: 95 % intervals, from resampled images.", ""])
