"""What a benchmark is: samples, a reading of each answer, counts that add up, and figures made of the sums."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from heal.errors import DataError, shortened
from heal.images import open_image
from heal.json_values import json_values
from heal.values import check_types

Number = int | float | np.ndarray
Counts = Mapping[str, float]


@runtime_checkable
class Picture(Protocol):
    """Where an image comes from; it is made or read only when asked for."""

    def load(self) -> Image.Image: ...


@dataclass(frozen=True)
class File:
    """A picture on disk."""

    path: Path

    def load(self) -> Image.Image:
        return open_image(self.path)


@dataclass(frozen=True)
class Sample:
    """One question about one image."""

    id: str
    """Unique in its task."""
    unit: str
    """What is resampled together: usually the image."""
    prompt: str
    truth: Mapping[str, Any]
    """What the answer is compared with; can be written as JSON."""
    picture: Picture = field(compare=False)

    def image(self) -> Image.Image:
        return self.picture.load()


class Task(ABC):
    """A benchmark. Every figure is a function of sums over units, so a bootstrap is one product of matrices."""

    name: ClassVar[str]
    summary: ClassVar[str]
    max_new_tokens: ClassVar[int]
    headline: ClassVar[str]
    """The figure to look at first."""
    higher_is_better: ClassVar[bool] = True
    """Whether a larger headline is better."""
    judged: ClassVar[bool] = False
    """Whether answers need a judge before they can be counted."""

    def __post_init__(self) -> None:
        """Of tasks that are dataclasses: the types of their options. Subclasses check the values."""
        check_types(self)

    @abstractmethod
    def samples(self) -> Sequence[Sample]:
        """All of them, always in the same order."""

    def remarks(self, samples: Sequence[Sample]) -> list[str]:
        """What to beware of if these samples are asked: figures that will not exist, or will say nothing."""
        return []

    @abstractmethod
    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        """What one answer says; can be written as JSON."""

    @abstractmethod
    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """What the answers of one unit add to the sums. Every unit gives the same keys."""

    @abstractmethod
    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        """Every figure, from sums of counts: numbers, or arrays of equal shape. Nothing counted gives NaN."""

    def counted(self, parse: Mapping[str, Any]) -> bool:
        """Whether the answer is in the figures. A paired difference takes only samples that count for both."""
        return True

    def note(self, parses: Iterable[Mapping[str, Any]]) -> str:
        """What must be said beside the figures: how answers were read, or why some were not counted."""
        return ""

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that is asked and expected, not of the pixels of files."""
        return fingerprint(self.samples())


def fingerprint(samples: Iterable[Sample]) -> str:
    digest = hashlib.sha256()
    for s in samples:
        digest.update(
            json.dumps(json_values([s.id, s.unit, s.prompt, dict(s.truth)]), sort_keys=True).encode() + b"\n"
        )
    return digest.hexdigest()[:16]


def unit_counts(
    task: Task, samples: Iterable[Sample], parses: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Counts of each unit, in the order of the samples. Samples without a parse (failed ones) are left out."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.id in parses:
            groups.setdefault(sample.unit, []).append(sample)
    return {unit: task.counts(group, [parses[s.id] for s in group]) for unit, group in groups.items()}


def totals(counts: Iterable[Counts]) -> dict[str, float]:
    """The sum over units."""
    sums: dict[str, float] = {}
    for unit in counts:
        for key, value in unit.items():
            sums[key] = sums.get(key, 0.0) + float(value)
    return sums


def figures(task: Task, counts: Iterable[Counts]) -> dict[str, float]:
    """Every figure of a set of units. Without any unit each is NaN (or 0 where it is a number of things)."""
    sums = totals(counts) or totals([task.counts([], [])])
    return {name: float(value) for name, value in task.score(sums).items()}


def ratio(part: Number, whole: Number, scale: int | float = 1) -> Number:
    """`scale · part / whole`; NaN where there is nothing to divide by."""
    top, bottom = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    empty = np.full(np.broadcast_shapes(top.shape, bottom.shape), np.nan)
    found = np.divide(scale * top, bottom, out=empty, where=bottom != 0)
    return found if found.ndim else float(found)


def together(samples: Iterable[Sample], where: str) -> tuple[Sample, ...]:
    """Units in the order in which they first occur, each in one piece. Two samples with one id are refused."""
    units: dict[str, dict[str, Sample]] = {}
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise DataError(
                f"{where}: the id {shortened(sample.id)} occurs twice, so answers could not be told apart"
            )
        seen.add(sample.id)
        units.setdefault(sample.unit, {})[sample.id] = sample
    return tuple(sample for unit in units.values() for sample in unit.values())
