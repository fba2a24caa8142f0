"""The parts of a study: what must be measured, and what was found. Values only; `running` measures them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from heal.bench.run.folder import Folder
from heal.bench.run.plan import Settings
from heal.bench.run.records import Key, Record
from heal.bench.run.runner import method_options
from heal.bench.score.summary import Row, Summary
from heal.bench.tasks.base import Sample, Task, fingerprint
from heal.json_values import json_values
from heal.methods import Method

if TYPE_CHECKING:
    from heal.vlm import VLM


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured on one sample: JSON facts and named arrays."""

    id: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


ERROR = "error"
"""The fact of a sample that could not be measured. `Records` leaves these samples out."""

Measure = Callable[["VLM", Sequence[Sample]], Sequence[Measured]]


@dataclass(frozen=True)
class Measurement:
    """A function of the model and a batch of samples, whose results are stored by batch."""

    name: str
    """What it is called in `Found`. Not part of its content."""
    kind: str
    """What is measured. Parts of equal kind, options and samples are equal: change it with the format of records."""
    samples: Sequence[Sample] = field(repr=False)
    measure: Measure = field(compare=False, repr=False)
    """One result for each sample of a batch, in order."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """JSON: everything besides model and samples that the results depend on."""
    batch_size: int = 16
    tokens: int = 128
    """Maximum number of tokens per sample, for estimates."""
    passes: float = 1.0
    """Time per sample relative to generating these tokens with HEAL, for estimates."""

    def content(self) -> dict[str, Any]:
        """Everything that the results depend on, except the model, as JSON values."""
        return json_values(
            {
                "kind": self.kind,
                "options": dict(self.options),
                "samples": fingerprint(self.samples),
                "count": len(self.samples),
                "batch_size": self.batch_size,
            }
        )

    @property
    def answers(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class Evaluation:
    """Methods × benchmarks. The first method is the reference of all differences."""

    name: str
    """What it is called in `Found`. Not part of its content."""
    tasks: Mapping[str, Task]
    """By `Setup.task_name`, so that records can be shared (see `Setup.tasks`)."""
    methods: Mapping[str, Method | None]
    settings: Settings = field(default_factory=Settings)
    timed: bool = False
    """Whether its times matter: then no answers of other runs are reused."""
    leave_out: bool = False
    """Leave out the methods that cannot be used with the model, instead of raising an error."""

    def content(self) -> dict[str, Any]:
        """Everything that the results depend on, except the model, as JSON values."""
        tasks = {
            name: {"fingerprint": fingerprint(task.samples()), "decoding": self.settings.decoding(task)}
            for name, task in self.tasks.items()
        }
        return json_values(
            {
                "kind": "evaluation",
                "tasks": tasks,
                "methods": method_options(self.methods),
                "settings": asdict(self.settings),
                "timed": self.timed,
            }
        )

    @property
    def answers(self) -> int:
        return len(self.methods) * sum(len(task.samples()) for task in self.tasks.values())


Part = Evaluation | Measurement


def key(part: Part, model: Mapping[str, Any]) -> str:
    """The name of the folder of a part: equal parts on equal models have equal keys."""
    text = json.dumps([part.content(), dict(model)], sort_keys=True, ensure_ascii=False)
    kind = "".join(c if c.isalnum() else "-" for c in str(part.content()["kind"]))
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Records:
    """The results of a measurement, in the order of the samples. Batches are read from disk when they are needed."""

    load: Sequence[Callable[[], Sequence[Measured]]]
    count: int

    @classmethod
    def of(cls, records: Sequence[Measured]) -> Records:
        """Results that are in memory."""
        return cls((lambda: records,), len(records))

    def __len__(self) -> int:
        """Number of samples, including failed ones."""
        return self.count

    def __iter__(self) -> Iterator[Measured]:
        for load in self.load:
            yield from (one for one in load() if ERROR not in one.facts)

    def failed(self) -> dict[str, str]:
        """The errors of the samples that could not be measured."""
        return {one.id: one.facts[ERROR] for load in self.load for one in load() if ERROR in one.facts}


@dataclass(frozen=True)
class Evaluated:
    """The results of an evaluation: the summary, and every answer."""

    summary: Summary
    samples: Mapping[str, Sequence[Sample]]
    """By task, without images."""
    answers: Mapping[Key, Record]
    """By task, method and sample, without failed ones."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why methods were left out, by method."""

    @classmethod
    def of(cls, summary: Summary, folder: Folder, left_out: Mapping[str, str] | None = None) -> Evaluated:
        """The results in a run folder, which `heal score` and `heal compare` read too."""
        answers = {key: record for key, record in folder.records().items() if record.error is None}
        return cls(summary, folder.samples(), answers, left_out or {})

    def row(self, task: str, method: str) -> Row:
        return self.summary.row(task, method)

    def texts(self, task: str, method: str) -> dict[str, str]:
        """The answers of one method by sample, in the order of the samples."""
        found = {s.id: self.answers.get(Key(task, method, s.id)) for s in self.samples[task]}
        return {id: record.text or "" for id, record in found.items() if record is not None}
