"""Decoding times of methods, measured in turns on the same images."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heal.bench.run.environment import Peak
from heal.bench.score.bootstrap import Interval, percentile_interval
from heal.bench.tasks.base import Sample, fingerprint
from heal.errors import HealError, HealWarning, first_line
from heal.methods import Method
from heal.speed import in_turn
from heal.studies.parts import Measured, Measurement, Records
from heal.vlm import VLM

STEPS = 60
"""Decoding steps after the first token: whole intervals of 2, 5, 10, 15 and 20 steps."""
WARM_UP = 12
IMAGES = 10
"""Images, or batches of them, that are described by each method in turn."""
RESAMPLES = 2000

Methods = Mapping[str, Method | None]
Choose = Callable[[VLM], tuple[Methods, Mapping[str, str]]]
"""The methods for a model, and why others are left out."""


def timed(
    name: str,
    samples: Sequence[Sample],
    choose: Choose,
    options: Mapping[str, Any],
    steps: int | None = None,
    batch: int = 1,
) -> Measurement:
    """Describe images by every method in turn, in up to `IMAGES` batches. Every batch is one record.

    All answers have the same number of tokens: the end token is suppressed. `options` name what `choose` chooses.
    `steps`: decoding steps after the first token; None is `STEPS`.
    """
    count = steps or STEPS
    batches = {rows[0].id: rows for rows in rows_of(samples, batch)[:IMAGES]}
    images = [rows[0] for rows in batches.values()]
    if batch > 1:
        every = [sample for rows in batches.values() for sample in rows]
        options = {**options, "batch": batch, "images": fingerprint(every)}

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        methods, skipped = choose(vlm)
        usable, failed = _warm(vlm, batches[samples[0].id], methods)
        found = []
        for turn, sample in enumerate(samples):
            times = _in_turn(vlm, batches[sample.id], usable, turn, count)
            found.append(Measured(sample.id, {"times": times, "skipped": {**skipped, **failed}}))
        return found

    return Measurement(
        name,
        "times",
        images,
        measure,
        {"steps": count, **options},
        batch_size=len(images),  # the order changes from image to image
        tokens=count + 1,
        passes=float(options.get("count", 1)) * batch,
    )


def rows_of(samples: Sequence[Sample], batch: int) -> list[Sequence[Sample]]:
    """Whole batches; a single smaller one if there are too few samples."""
    whole = [samples[at : at + batch] for at in range(0, len(samples) - batch + 1, batch)]
    return whole or [samples]


def _warm(vlm: VLM, rows: Sequence[Sample], methods: Methods) -> tuple[dict[str, Method | None], dict[str, str]]:
    """Compile what a method compiles. The methods that can be used, and why others cannot."""
    usable: dict[str, Method | None] = {}
    failed: dict[str, str] = {}
    for name, method in methods.items():
        try:
            _describe(vlm, rows, method, WARM_UP)
            usable[name] = method
        except HealError as error:
            failed[name] = first_line(error)
    return usable, failed


def _in_turn(
    vlm: VLM, rows: Sequence[Sample], methods: Methods, turn: int, steps: int
) -> dict[str, dict[str, float]]:
    return {name: _describe(vlm, rows, methods[name], steps + 1) for name in in_turn(list(methods), turn)}


def _describe(vlm: VLM, rows: Sequence[Sample], method: Method | None, tokens: int) -> dict[str, float]:
    peak = Peak(vlm.device)
    peak.start()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing was changed", HealWarning)  # it is in the record
        answers = vlm.generate(
            [sample.image() for sample in rows],
            [sample.prompt for sample in rows],
            method=method,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
    # the answers of a batch have the same times, unless the method generates them one by one
    own = answers if method is not None and method.one_sample else answers[:1]
    # the answer itself may be shorter: a search may remove tokens that took their time
    later = sum(a.seconds - a.first_token_seconds for a in own) / (len(rows) * (tokens - 1))
    first = sum(a.first_token_seconds for a in own)
    changes = sum(a.fired.changes for a in answers if a.fired is not None)
    return {"ms": 1e3 * later, "first_ms": 1e3 * first, "memory": float(peak.read()), "changes": float(changes)}


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Times:
    """Medians over images. Ratios are to the first method on the same image."""

    ms: Interval
    """Per token after the first one; in a batch, its time is divided by its rows."""
    ratio: Interval
    first_ms: Interval
    """Until the first token of all rows."""
    first_ratio: Interval
    memory: int
    """Peak in bytes."""
    changes: int = 0
    """Values that the method changed, over all images (`Fired.changes`)."""


def times_of(records: Records, base: str, seed: int = 0) -> tuple[dict[str, Times], dict[str, str]]:
    """The times of each method, and why others were left out."""
    every = [record.facts for record in records]
    if not every:
        return {}, {}
    names = [name for name in every[0]["times"] if all(name in facts["times"] for facts in every)]
    table = {name: [facts["times"][name] for facts in every] for name in names}
    return {name: _times(own, table[base], seed) for name, own in table.items()}, dict(every[0]["skipped"])


def ratio_between(records: Records, first: str, second: str, seed: int = 0) -> Interval:
    """The time per token of the second method, relative to the first on the same image."""
    every = [record.facts["times"] for record in records]
    both = [facts for facts in every if first in facts and second in facts]
    return median_interval([facts[second]["ms"] / facts[first]["ms"] for facts in both], seed)


def _times(own: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]], seed: int) -> Times:
    def median(key: str) -> Interval:
        return median_interval([one[key] for one in own], seed)

    def ratio(key: str) -> Interval:
        return median_interval([one[key] / other[key] for one, other in zip(own, base, strict=True)], seed)

    memory = max(int(one["memory"]) for one in own)
    changes = sum(int(one.get("changes", 0)) for one in own)
    return Times(median("ms"), ratio("ms"), median("first_ms"), ratio("first_ms"), memory, changes)


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The median with its bootstrap interval; none for a single value."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return Interval(float(array[0]) if len(array) else float("nan"), float("nan"), float("nan"))
    drawn = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    return Interval(float(np.median(array)), *percentile_interval(np.median(array[drawn], axis=1)))
