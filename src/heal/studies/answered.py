"""The answers of an evaluation on one task: figures of each method, and differences between any two methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heal.bench.run.records import Key, Record
from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.score.equal_recall import KEYS, EqualRecall, cut_counts, equal_recall
from heal.bench.score.summary import Row
from heal.bench.tasks.base import Counts, Sample, Task, unit_counts
from heal.studies.parts import Evaluated
from heal.studies.statistics import FEWEST
from heal.studies.study import Cell, Found, Value

CHAIR_S, CHAIR_I, RECALL, LENGTH = "CHAIR_s ↓", "CHAIR_i ↓", "recall", "length"
EQUAL_RECALL = "CHAIR_i at equal recall"
CAPTIONS: Mapping[str, tuple[str, int]] = {
    CHAIR_S: ("chair_s", 1),
    CHAIR_I: ("chair_i", 1),
    RECALL: ("recall", 1),
    LENGTH: ("len", 1),
}
"""Headings of the figures of captions, and their digits."""

EQUAL_RECALL_NOTE = (
    "CHAIR_i at equal recall: mean difference to the plain model where captions, cut after 1, 2, … sentences, reach "
    "the same object recall. Negative is better. A method that only names fewer objects gains nothing."
)


@dataclass(frozen=True)
class Answered:
    """The answers to one task. Names of methods are those of the evaluation."""

    evaluated: Evaluated
    name: str
    """Of the task in the evaluation."""
    task: Task
    seed: int = 0

    @classmethod
    def of(cls, found: Found, part: str, benchmark: str, distribution: str) -> Answered:
        setup = found.setup
        name = setup.task_name(benchmark, distribution)
        return cls(found.evaluation(part), name, setup.task(benchmark, distribution), setup.seed)

    @cached_property
    def samples(self) -> list[Sample]:
        return list(self.evaluated.samples[self.name])

    def records(self, method: str) -> dict[str, Record]:
        """The answers of a method by sample, in the order of the samples."""
        every = ((s.id, self.evaluated.answers.get(Key(self.name, method, s.id))) for s in self.samples)
        return {id: record for id, record in every if record is not None}

    def parses(self, method: str) -> dict[str, Mapping[str, Any]]:
        return {id: record.parse or {} for id, record in self.records(method).items()}

    def row(self, method: str) -> Row:
        return self.evaluated.row(self.name, method)

    def figure(self, method: str, name: str) -> Interval:
        return self.row(method).figures[name]

    def differences(self, first: str, second: str) -> dict[str, Interval]:
        """Intervals of second − first for all figures, paired by image."""
        before, after = self._both(first, second)
        return bootstrap.differences(self.task.score, before, after, self.seed)

    def gain(self, first: str, second: str) -> EqualRecall | None:
        """CHAIR_i of the second method minus that of the first at equal recall; None for tasks without captions."""
        one, other = self.records(first), self.records(second)
        both = [s for s in self.samples if s.id in one and s.id in other]
        before, after = (
            cut_counts(self.task, both, {s.id: own[s.id].text or "" for s in both}) for own in (one, other)
        )
        return equal_recall(before, after, self.seed)

    @property
    def images(self) -> int:
        return len({sample.unit for sample in self.samples})

    def errors(self, method: str) -> tuple[str, int] | None:
        """Hallucinated objects in captions, or wrong answers to yes/no questions. None for other tasks."""
        parses = self.parses(method)
        samples = [sample for sample in self.samples if sample.id in parses]
        every = [self.task.counts([sample], [parses[sample.id]]) for sample in samples]
        if every and set(KEYS) <= set(every[0]):
            return "hallucinated objects", int(sum(counts["wrong"] for counts in every))
        if samples and "label" in samples[0].truth and "answer" in parses[samples[0].id]:
            wrong = sum(parses[sample.id]["answer"] != sample.truth["label"] for sample in samples)
            return "wrong answers", int(wrong)
        return None

    def behind(self, first: str, second: str) -> tuple[str, int]:
        """What a comparison of two methods rests on: the images, or the errors of either if these are too few."""
        found = [errors for method in (first, second) if (errors := self.errors(method)) is not None]
        what, most = max(found, key=lambda one: one[1], default=("", FEWEST))
        return (what, most) if self.images >= FEWEST > most else ("images", self.images)

    def _both(self, first: str, second: str) -> tuple[dict[str, Counts], dict[str, Counts]]:
        """Counts by image, of the samples that both methods answered."""
        one, other = self.parses(first), self.parses(second)
        both = [s for s in self.samples if all(s.id in own and self.task.counted(own[s.id]) for own in (one, other))]
        before, after = (unit_counts(self.task, both, own) for own in (one, other))
        return dict(before), dict(after)


def caption_cells(answered: Answered, method: str) -> dict[str, Cell]:
    """CHAIR, recall and length of a method, and its gain at equal recall over the first method."""
    row = answered.row(method)
    found: dict[str, Cell] = {
        heading: Value.of(row.figures[figure], digits=digits) for heading, (figure, digits) in CAPTIONS.items()
    }
    gain = None if row.equal_recall is None else Value.of(row.equal_recall.mean, digits=2)
    return {CHAIR_S: found[CHAIR_S], CHAIR_I: found[CHAIR_I], EQUAL_RECALL: gain, **found}
