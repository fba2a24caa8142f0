"""The task interface: samples, parsing of answers, counts per unit, and figures computed from their sums."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
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
class ImageSource(Protocol):
    """Source of an image, which is drawn or read on demand."""

    def load(self) -> Image.Image: ...


@dataclass(frozen=True)
class File:
    """An image file."""

    path: Path

    def load(self) -> Image.Image:
        return open_image(self.path)


@dataclass(frozen=True)
class Sample:
    """One question about one image."""

    id: str
    """Unique within the task."""
    unit: str
    """Samples of one unit are resampled together; usually the image."""
    prompt: str
    truth: Mapping[str, Any]
    """The reference for scoring; must be JSON-serialisable."""
    image_source: ImageSource = field(compare=False)

    def image(self) -> Image.Image:
        return self.image_source.load()


class Task(ABC):
    """A benchmark. Every figure is a function of sums over units, so the bootstrap is one matrix product."""

    name: ClassVar[str]
    summary: ClassVar[str]
    max_new_tokens: ClassVar[int]
    headline: ClassVar[str]
    """Name of the main figure."""
    higher_is_better: ClassVar[bool] = True
    """Whether a higher headline is better."""
    judged: ClassVar[bool] = False
    """Whether answers must be rated by a judge."""

    def __post_init__(self) -> None:
        """Check the types of a dataclass task's options. Subclasses check the values."""
        check_types(self)

    @abstractmethod
    def samples(self) -> Sequence[Sample]:
        """All samples, always in the same order."""

    def remarks(self, samples: Sequence[Sample]) -> list[str]:
        """Warnings about these samples, such as figures that will be undefined or meaningless."""
        return []

    @abstractmethod
    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        """Parse one answer; the result must be JSON-serialisable."""

    def judge(self, sample: Sample, text: str, ask: Callable[..., Any]) -> dict[str, Any]:
        """Parse one answer with the help of a judge, if the task needs one."""
        return self.parse(sample, text)

    @abstractmethod
    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Counts of one unit, with the same keys for every unit."""

    @abstractmethod
    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        """All figures, from summed counts (numbers, or arrays of equal shape). NaN if nothing was counted."""

    def counted(self, parse: Mapping[str, Any]) -> bool:
        """Whether the answer is counted. Paired differences use only samples that count for both methods."""
        return True

    def cuts(self, text: str) -> Sequence[str]:
        """The answer after 1, 2, … sentences, the whole answer last. Only for captions with the counts of CHAIR."""
        return ()

    def note(self, parses: Iterable[Mapping[str, Any]]) -> str:
        """Remark on the figures: how answers were parsed, or why some were not counted."""
        return ""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all prompts and references, not of the pixels of image files."""
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
    """Counts per unit, in the order of the samples. Samples without a parse (failed ones) are skipped."""
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
    """All figures of a set of units. Without units each is NaN (or 0 if it is a number of items)."""
    sums = totals(counts) or totals([task.counts([], [])])
    return {name: float(value) for name, value in task.score(sums).items()}


def ratio(part: Number, whole: Number, scale: int | float = 1) -> Number:
    """`scale · part / whole`; NaN where `whole` is 0."""
    top, bottom = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    empty = np.full(np.broadcast_shapes(top.shape, bottom.shape), np.nan)
    found = np.divide(scale * top, bottom, out=empty, where=bottom != 0)
    return found if found.ndim else float(found)


def grouped_by_unit(samples: Iterable[Sample], where: str) -> tuple[Sample, ...]:
    """Group samples by unit, in the order of first occurrence. Repeated ids are refused."""
    units: dict[str, dict[str, Sample]] = {}
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise DataError(f"{where}: the id {shortened(sample.id)} occurs twice, but ids must be unique")
        seen.add(sample.id)
        units.setdefault(sample.unit, {})[sample.id] = sample
    return tuple(sample for unit in units.values() for sample in unit.values())
