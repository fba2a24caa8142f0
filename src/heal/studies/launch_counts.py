"""Launches and host waits of methods while they describe the same images, counted as by `heal speed --count`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heal.bench.tasks.base import Sample, fingerprint
from heal.errors import HealError, first_line
from heal.launch_counter import Counts
from heal.launches import Load, Subject, steps_of
from heal.methods import HEAL, Method
from heal.studies.parts import Measured, Measurement, Records
from heal.vlm import VLM

TOKENS = 20
"""Two intervals of refreshed head types, with their refreshes."""


@dataclass(frozen=True)
class Launched:
    """Means over the counted steps."""

    launches: float
    """Per step and decoder layer."""
    waits: float
    """Host waits per step."""
    layers: int
    rows: int

    @property
    def per_token(self) -> float:
        """Launches for one generated token of one row, over all layers."""
        return self.launches * self.layers / self.rows


def counted(
    name: str, rows: Sequence[Sample], methods: Mapping[str, Method | None], options: Mapping[str, Any]
) -> Measurement:
    """Count `TOKENS` decoding steps of every method on a batch of images. `options` name the methods."""

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        found, skipped = {}, {}
        for method_name, method in methods.items():
            try:
                found[method_name] = asdict(_count(vlm, rows, method))
            except HealError as error:
                skipped[method_name] = first_line(error)
        return [Measured(sample.id, {"counts": found, "skipped": skipped}) for sample in samples]

    described = {"tokens": TOKENS, "batch": len(rows), "images": fingerprint(rows), **options}
    return Measurement(
        name, "launches", rows[:1], measure, described, tokens=TOKENS, passes=float(len(methods) * len(rows))
    )


def _count(vlm: VLM, rows: Sequence[Sample], method: Method | None) -> Launched:
    subject = Subject.of(vlm, [sample.image() for sample in rows], [sample.prompt for sample in rows])
    if isinstance(method, HEAL) or (method is not None and method.wraps):
        steps_of(subject, method, TOKENS)  # tables of noise are computed once, on the host
    load = Load.of(Counts.total(steps_of(subject, method, TOKENS)), TOKENS, subject.layers)
    return Launched(load.launches, load.waits, subject.layers, len(rows))


def counts_of(records: Records) -> tuple[dict[str, Launched], dict[str, str]]:
    """The counts of each method, and why others were left out."""
    for record in records:
        found = {name: Launched(**own) for name, own in record.facts["counts"].items()}
        return found, dict(record.facts["skipped"])
    return {}, {}
