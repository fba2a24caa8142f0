"""Parts of a benchmark, or its samples in another order, as tasks with the same questions, parsers and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heal.bench.tasks.base import Number, Sample, Task


@dataclass(frozen=True)
class TaskView(Task):
    """Another task with some of its samples. A run folder describes it as that task."""

    task: Task

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("name", "summary", "max_new_tokens", "headline", "higher_is_better", "judged"):
            object.__setattr__(self, name, getattr(self.task, name))

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        return tuple(self.task.samples())

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def remarks(self, samples: Sequence[Sample]) -> list[str]:
        return self.task.remarks(samples)

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return self.task.parse(sample, text)

    def judge(self, sample: Sample, text: str, ask: Callable[..., Any]) -> dict[str, Any]:
        return self.task.judge(sample, text, ask)

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return self.task.counts(samples, parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return self.task.score(totals)

    def counted(self, parse: Mapping[str, Any]) -> bool:
        return self.task.counted(parse)

    def cuts(self, text: str) -> Sequence[str]:
        return self.task.cuts(text)

    def note(self, parses: Iterable[Mapping[str, Any]]) -> str:
        return self.task.note(parses)


@dataclass(frozen=True)
class FirstUnits(TaskView):
    """The first units (images) of a benchmark, with all questions about each."""

    units: int = 1

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        every = self.task.samples()
        first = set(list(dict.fromkeys(sample.unit for sample in every))[: self.units])
        return tuple(sample for sample in every if sample.unit in first)


@dataclass(frozen=True)
class LaterUnits(TaskView):
    """The units (images) of a benchmark after the first ones, with all questions about each."""

    units: int = 1
    """Number of units that are left out."""

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        every = self.task.samples()
        later = set(list(dict.fromkeys(sample.unit for sample in every))[self.units :])
        return tuple(sample for sample in every if sample.unit in later)


@dataclass(frozen=True)
class AcrossUnits(TaskView):
    """The first sample of every unit, then the second of every unit, and so on: neighbours show different images."""

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        seen: dict[str, int] = {}
        places = []
        for sample in self.task.samples():
            seen[sample.unit] = seen.get(sample.unit, -1) + 1
            places.append((seen[sample.unit], sample))
        return tuple(sample for _, sample in sorted(places, key=lambda place: place[0]))
