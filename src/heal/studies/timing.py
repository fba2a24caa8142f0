"""Decoding times of methods, measured in turns on the same images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heal.bench.run.environment import Peak
from heal.bench.score.bootstrap import Interval, percentile_interval
from heal.bench.tasks.base import Sample
from heal.errors import HealError, first_line
from heal.methods import Method
from heal.speed import in_turn
from heal.studies.parts import Measured, Measurement, Records
from heal.vlm import VLM

STEPS = 60
"""Decoding steps after the first token: whole intervals of 2, 5, 10, 15 and 20 steps."""
WARM_UP = 12
IMAGES = 10
"""Images that are described by each method in turn."""
RESAMPLES = 2000

Methods = Mapping[str, Method | None]
Choose = Callable[[VLM], tuple[Methods, Mapping[str, str]]]
"""The methods for a model, and why others are left out."""


def timed(name: str, samples: Sequence[Sample], choose: Choose, options: Mapping[str, Any]) -> Measurement:
    """Describe up to `IMAGES` images by every method in turn, one image at a time.

    All answers have the same number of tokens: the end token is suppressed. `options` name what `choose` chooses.
    """
    images = samples[:IMAGES]

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        methods, skipped = choose(vlm)
        usable, failed = _warm(vlm, samples[0], methods)
        return [
            Measured(s.id, {"times": _in_turn(vlm, s, usable, turn), "skipped": {**skipped, **failed}})
            for turn, s in enumerate(samples)
        ]

    return Measurement(
        name,
        "times",
        images,
        measure,
        {"steps": STEPS, **options},
        batch_size=len(images),  # the order changes from image to image
        tokens=STEPS + 1,
        passes=float(options.get("count", 1)),
    )


def _warm(vlm: VLM, sample: Sample, methods: Methods) -> tuple[dict[str, Method | None], dict[str, str]]:
    """Compile what a method compiles. The methods that can be used, and why others cannot."""
    usable: dict[str, Method | None] = {}
    failed: dict[str, str] = {}
    for name, method in methods.items():
        try:
            _describe(vlm, sample, method, WARM_UP)
            usable[name] = method
        except HealError as error:
            failed[name] = first_line(error)
    return usable, failed


def _in_turn(vlm: VLM, sample: Sample, methods: Methods, turn: int) -> dict[str, dict[str, float]]:
    return {name: _describe(vlm, sample, methods[name], STEPS + 1) for name in in_turn(list(methods), turn)}


def _describe(vlm: VLM, sample: Sample, method: Method | None, tokens: int) -> dict[str, float]:
    peak = Peak(vlm.device)
    peak.start()
    answer = vlm.generate(
        sample.image(),
        sample.prompt,
        method=method,
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
    )
    # the answer itself may be shorter: a search may remove tokens that took their time
    later = (answer.seconds - answer.first_token_seconds) / (tokens - 1)
    return {"ms": 1e3 * later, "first_ms": 1e3 * answer.first_token_seconds, "memory": float(peak.read())}


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Times:
    """Medians over images. Ratios are to the first method on the same image."""

    ms: Interval
    """Per token after the first one."""
    ratio: Interval
    first_ms: Interval
    first_ratio: Interval
    memory: int
    """Peak in bytes."""


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
    return Times(median("ms"), ratio("ms"), median("first_ms"), ratio("first_ms"), memory)


def median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The median with its bootstrap interval; none for a single value."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return Interval(float(array[0]) if len(array) else float("nan"), float("nan"), float("nan"))
    drawn = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    return Interval(float(np.median(array)), *percentile_interval(np.median(array[drawn], axis=1)))
