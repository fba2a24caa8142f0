"""Choose α on one task: the visual share of synergy heads at correct tokens, the rule of `heal calibrate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heal.analysis.taxonomy import HeadType
from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.tasks.base import Sample, Task, ratio
from heal.bench.tasks.task_views import AcrossUnits, FirstUnits, LaterUnits
from heal.errors import ConfigError
from heal.studies.parts import Measured, Measurement, Records
from heal.studies.setup import Setup
from heal.studies.statistics import FEWEST
from heal.studies.traces import answers, plain_traces
from heal.vlm import VLM

CAPTIONS, QUESTIONS = "chair", "pope"
BENCHMARKS = (CAPTIONS, QUESTIONS)
TITLES = {CAPTIONS: "captions", QUESTIONS: "POPE"}
MOST_QUESTIONS = 200
"""Questions of POPE on which α is chosen; each has one token that counts."""
DIGITS = 2
"""Of α."""


@dataclass(frozen=True)
class Place:
    """A task on which α is chosen or used."""

    benchmark: str
    distribution: str

    def __str__(self) -> str:
        return f"{TITLES[self.benchmark]} {self.distribution}"


@dataclass(frozen=True)
class Choice:
    """The α of a task."""

    place: Place
    share: Interval
    """The mean visual share, with its interval over images."""
    tokens: int
    """Correct tokens at which some synergy head carries both."""

    @property
    def alpha(self) -> float:
        return min(max(round(self.share.value, DIGITS), 10**-DIGITS), 1 - 10**-DIGITS)

    @property
    def too_few(self) -> bool:
        return self.tokens < FEWEST


def places(setup: Setup) -> list[Place]:
    return [Place(b, d) for b in BENCHMARKS for d in setup.distributions]


# ── the images ────────────────────────────────────────────────────────────────────────────────────────────


def on_halves(setup: Setup) -> bool:
    """Whether α is chosen on one half of the images and used on the other: official data have no other split, and
    the test split must not be used if the user chose the validation split."""
    return setup.data is not None or setup.split != "test"


def choosing(setup: Setup, place: Place) -> Task:
    """The task on which α is chosen."""
    if on_halves(setup):
        task = setup.task(place.benchmark, place.distribution)
        return FirstUnits(task, half(task))
    return replace(setup, split="validation").task(place.benchmark, place.distribution)


def using(setup: Setup) -> dict[str, Task]:
    """The tasks on which every α is used."""
    tasks = setup.tasks(*BENCHMARKS)
    return {name: LaterUnits(task, half(task)) for name, task in tasks.items()} if on_halves(setup) else tasks


def half(task: Task) -> int:
    """Half of the number of images."""
    images = len({sample.unit for sample in task.samples()})
    if images < 2:
        raise ConfigError(
            "transfer chooses α on one half of the images and uses it on the other: give at least 2 images"
        )
    return images // 2


# ── what is measured ──────────────────────────────────────────────────────────────────────────────────────


def part_name(place: Place) -> str:
    return f"choice on {place}"


def measured(setup: Setup, place: Place) -> Measurement:
    """The plain model's answers with the scores of the heads."""
    task = choosing(setup, place)
    if place.benchmark == CAPTIONS:
        traces = plain_traces(setup, place.distribution, name=part_name(place))
        return replace(traces, samples=task.samples())
    return _questions(setup, place, AcrossUnits(task))


def _questions(setup: Setup, place: Place, task: Task) -> Measurement:
    """The first token of each answer, and whether the answer is correct."""
    measuring = replace(setup.heal, calibrate=False)
    tokens = setup.max_new_tokens or task.max_new_tokens

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        found = vlm.generate(
            [sample.image() for sample in samples],
            [sample.prompt for sample in samples],
            method=measuring,
            trace=True,
            max_new_tokens=tokens,
            do_sample=False,
            num_beams=1,
        )
        return [
            Measured(
                sample.id,
                {"unit": sample.unit, "correct": is_correct(task, sample, answer.text)},
                {"alpha_vis": answer.trace.alpha_vis[0], "types": answer.trace.types[0]},
            )
            for sample, answer in zip(samples, found, strict=True)
        ]

    return Measurement(
        part_name(place),
        "shares at answers",
        task.samples()[:MOST_QUESTIONS],
        measure,
        {"method": measuring.options(), "max_new_tokens": tokens},
        setup.batch_size,
        tokens,
    )


def is_correct(task: Task, sample: Sample, text: str) -> bool:
    """Whether the answer to a question of POPE is correct."""
    return bool(task.parse(sample, text)["answer"] == sample.truth["label"])


# ── α ─────────────────────────────────────────────────────────────────────────────────────────────────────

Shares = tuple[str, np.ndarray]
"""The image of a correct token, and the visual shares of the synergy heads there that carry both."""


def at_names(records: Records, interval: int) -> Iterable[Shares]:
    """At the first token of each correctly named object."""
    for answer in answers(records):
        synergy = answer.in_effect(interval) == int(HeadType.SYNERGY)
        for name in answer.names:
            if name.correct:
                yield answer.unit, _known(answer.alpha_vis[name.step], synergy[name.step])


def at_answers(records: Records) -> Iterable[Shares]:
    """At the first token of each correct answer."""
    for record in records:
        if record.facts["correct"]:
            synergy = record.arrays["types"] == int(HeadType.SYNERGY)
            yield record.facts["unit"], _known(record.arrays["alpha_vis"], synergy)


def _known(shares: np.ndarray, synergy: np.ndarray) -> np.ndarray:
    return shares[synergy & ~np.isnan(shares)].astype(float)


def choice(place: Place, shares: Iterable[Shares], seed: int) -> Choice | None:
    """The mean over all heads and tokens. None without a correct token."""
    counts: dict[str, dict[str, float]] = {}
    tokens = 0
    for unit, own in shares:
        if len(own):
            tokens += 1
            total = counts.setdefault(unit, {"share": 0.0, "heads": 0.0})
            total["share"] += float(own.sum())
            total["heads"] += len(own)
    if not tokens:
        return None
    found = bootstrap.intervals(lambda sums: {"mean": ratio(sums["share"], sums["heads"])}, counts, seed)["mean"]
    return Choice(place, found, tokens)


def choices(setup: Setup, records: Mapping[Place, Records]) -> dict[Place, Choice]:
    """The α of every task that has a correct token."""
    found = {}
    for place, own in records.items():
        shares = at_names(own, setup.heal.interval) if place.benchmark == CAPTIONS else at_answers(own)
        chosen = choice(place, shares, setup.seed)
        if chosen is not None:
            found[place] = chosen
    return found
