"""Settings of HEAL that are compared with a reference setting, and what must be measured for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heal.bench.tasks.base import Sample
from heal.bench.tasks.task_views import AcrossUnits
from heal.methods import HEAL, Method
from heal.methods.heal import DRAWN
from heal.studies.agreement import Types
from heal.studies.parts import ERROR, Evaluation, Measured, Measurement, Part
from heal.studies.setup import Setup
from heal.studies.traces import TracedAnswer, plain_traces

if TYPE_CHECKING:
    from heal.vlm import VLM

PAIRS = 50
"""Descriptions in the paper's comparisons: the default number with official data."""
PLAIN = "plain model"
ALONE = "swap takes values from another sample, and this one was alone in its batch"


@dataclass(frozen=True)
class Variant:
    """One setting: a row of the table."""

    label: str
    method: HEAL
    paper: tuple[str, ...] = ()
    """Where its figures are in paper.json. Empty: the paper has no such setting."""
    types: Callable[[TracedAnswer], Types] | None = None
    """Finds its head types in the scores of the reference. None: its scores are measured."""
    answers: bool = True
    """Whether it answers POPE."""

    @property
    def swaps(self) -> bool:
        return "swap" in (self.method.noise, self.method.replaced_by)


def varied(method: HEAL, **changes: Any) -> HEAL:
    """The method with other options. Options that these exclude get their defaults."""
    masking = changes.get("masking", method.noise)
    allowed: dict[str, Any] = {"compile": False}
    if masking not in DRAWN:
        allowed["draws"] = 1
    if masking not in ("expected", "gaussian"):
        allowed["covariance"] = "diagonal"
    return replace(method, **(allowed | changes))


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────


def parts(setup: Setup, variants: Sequence[Variant]) -> list[Part]:
    """Traces of all settings whose scores must be measured, and the answers to POPE of all. The first setting is the
    reference."""
    found: list[Part] = []
    for distribution in setup.distributions:
        found += [
            _traces(setup, distribution, variant, reference=place == 0)
            for place, variant in enumerate(variants)
            if variant.types is None
        ]
    return [*found, *_answers(setup, variants)]


def traces_name(distribution: str, label: str) -> str:
    return f"traces {distribution}, {label}"


def _traces(setup: Setup, distribution: str, variant: Variant, reference: bool) -> Measurement:
    part = plain_traces(limited(setup), distribution, variant.method, traces_name(distribution, variant.label))
    return _in_pairs(part) if variant.swaps and not reference else part


def limited(setup: Setup) -> Setup:
    """As many descriptions as the user asked for; of official data, as many as in the paper by default."""
    return setup if setup.data is None or setup.samples else replace(setup, samples=PAIRS)


def _in_pairs(part: Measurement) -> Measurement:
    """A sample that is alone in its batch has no other to swap with, and is left out."""

    def measure(vlm: VLM, samples: Sequence[Sample]) -> Sequence[Measured]:
        return part.measure(vlm, samples) if len(samples) > 1 else [Measured(samples[0].id, {ERROR: ALONE})]

    return replace(part, measure=measure)


def _answers(setup: Setup, variants: Sequence[Variant]) -> list[Part]:
    answering = {v.label: v for v in variants if v.answers}
    methods: dict[str, Method | None] = {label: v.method for label, v in answering.items() if not v.swaps}
    found: list[Part] = [Evaluation("pope", setup.tasks("pope"), {**methods, PLAIN: None}, setup.settings)]
    swapping = {label: v.method for label, v in answering.items() if v.swaps}
    part = _swapped(setup, next(iter(answering.items())), swapping) if swapping else None
    return found if part is None else [*found, part]


SWAPPED = "pope, swap"


def _swapped(setup: Setup, first: tuple[str, Variant], swapping: Mapping[str, Method | None]) -> Evaluation | None:
    """The questions in an order in which neighbours, which swap with each other, show different images. None if some
    task has only one question."""
    tasks = {name: AcrossUnits(task) for name, task in setup.tasks("pope").items()}
    size = batch_size([len(task.samples()) for task in tasks.values()], setup.batch_size)
    if size is None:
        return None
    methods = {first[0]: first[1].method, **swapping}
    return Evaluation(SWAPPED, tasks, methods, replace(setup.settings, batch_size=size))


def batch_size(counts: Sequence[int], size: int) -> int | None:
    """The smallest batch size from `size` on that leaves no sample alone. None if there is none."""
    if min(counts) < 2:
        return None
    return next(own for own in range(max(2, size), max(counts) + size + 2) if all(n % own != 1 for n in counts))
