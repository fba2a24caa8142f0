"""Answer batches with every method and record the results. A failed sample does not stop its batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from PIL import Image

from heal.bench.run.environment import Peak
from heal.bench.run.folder import Folder
from heal.bench.run.plan import Batch, Settings, sample_seed
from heal.bench.run.records import Key, Record
from heal.bench.tasks.base import Sample, Task
from heal.engine.prefix_cache import prefix_cache
from heal.errors import HealError, HealWarning, ImageError, InputWarning, NonFiniteError, PromptError
from heal.generate import Answer
from heal.methods import Method
from heal.vlm import VLM

SAMPLE_ERRORS = (ImageError, PromptError, NonFiniteError)


@dataclass(frozen=True)
class Progress:
    """Progress of one process, counted in records."""

    done: int
    total: int
    failed: int
    task: str


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Work:
    """Everything needed to answer the batches of a run."""

    vlm: VLM
    tasks: Mapping[str, Task]
    methods: Mapping[str, Method | None]
    settings: Settings
    folder: Folder

    def answer(self, share: Sequence[Batch], shard: int | None, watch: Watch | None) -> None:
        """Answer all batches with all methods and write each result to disk before the next one starts."""
        mine = {Key(b.task, m, s.id) for b in share for m in self.methods for s in b.samples}
        there = {key: record for key, record in self.folder.records().items() if key in mine}
        done, failed = len(there), _failures(there.values())

        def report(task: str) -> None:
            if watch is not None:
                watch(Progress(done, len(mine), failed, task))

        with self.folder.appender(shard) as file:
            report(share[0].task if share else "")
            earlier = " in an earlier part of this run; failed samples are not retried"
            warned = _warn_of_failure(there.values(), earlier)
            for batch in share:
                for made in self._batch(batch, there):
                    file.add(made)
                    warned = warned or _warn_of_failure(made, "")
                    done, failed = done + len(made), failed + _failures(made)
                    report(batch.task)

    def _batch(self, batch: Batch, there: Mapping[Key, Record]) -> Iterator[list[Record]]:
        """Yield the missing records. The whole batch is always answered, because rounding depends on its rows."""
        missing = {m: {s.id for s in batch.samples if Key(batch.task, m, s.id) not in there} for m in self.methods}
        if not any(missing.values()):
            return
        images = [_image(sample) for sample in batch.samples]
        with prefix_cache(self.vlm.model) if self.settings.prefix_cache else nullcontext():
            for name, lost in missing.items():
                if lost:
                    yield [record for record in self._records(batch, name, images) if record.sample in lost]

    def _records(self, batch: Batch, name: str, images: Sequence[Image.Image | ImageError]) -> list[Record]:
        peak = Peak(self.vlm.device)
        peak.start()
        rows = [(s, p) for s, p in zip(batch.samples, images, strict=True) if not isinstance(p, ImageError)]
        answers = iter(self._answers(batch.task, name, rows))
        results = [(p, 1) if isinstance(p, ImageError) else next(answers) for p in images]
        memory = peak.read()
        return [
            self._record(batch, name, sample, result, at_once, memory)
            for sample, (result, at_once) in zip(batch.samples, results, strict=True)
        ]

    def _answers(
        self, task: str, name: str, rows: Sequence[tuple[Sample, Image.Image]]
    ) -> list[tuple[Answer | HealError, int]]:
        """Return each answer with the number of rows that share its time. A failed batch is answered row by row."""
        if not rows:
            return []
        seed = self.settings.seed
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HealWarning)  # the summary reports methods without effect
                warnings.simplefilter("default", InputWarning)  # but not unusual images or prompts
                found = self.vlm.generate(
                    [image for _, image in rows],
                    [sample.prompt for sample, _ in rows],
                    method=self.methods[name],
                    seed=sample_seed(seed, task, rows[0][0].id) if self.settings.sampled else seed,
                    **self.settings.decoding(self.tasks[task]),
                )
            # rows that are generated one by one have times of their own
            at_once = 1 if getattr(self.methods[name], "one_sample", False) else len(rows)
            return [(answer, at_once) for answer in found]
        except SAMPLE_ERRORS as error:
            if len(rows) == 1:
                return [(error, 1)]
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
            torch.cuda.empty_cache()
        return [result for row in rows for result in self._answers(task, name, [row])]

    def _record(
        self, batch: Batch, name: str, sample: Sample, result: Answer | HealError, at_once: int, memory: int
    ) -> Record:
        place: dict[str, Any] = {"task": batch.task, "method": name, "sample": sample.id, "batch": batch.number}
        if isinstance(result, HealError):
            return Record(**place, error=f"{type(result).__name__}: {result}")
        return Record(
            **place,
            text=result.text,
            tokens=len(result.token_ids),
            finish=result.finish,
            seconds=result.seconds / at_once,
            first_token_seconds=result.first_token_seconds / at_once,
            memory=memory,
            fired=None if result.fired is None else asdict(result.fired),
            parse=self.tasks[batch.task].parse(sample, result.text),
        )


def _failures(records: Iterable[Record]) -> int:
    return sum(record.error is not None for record in records)


def _warn_of_failure(records: Iterable[Record], when: str) -> bool:
    """Report the first failure immediately: a run may take hours, and samples often fail for the same reason."""
    first = next((record for record in records if record.error is not None), None)
    if first is not None:
        text = f"{first.task}, sample {first.sample} with {first.method} failed{when}: {first.error}"
        warnings.warn(text, HealWarning, stacklevel=2)
    return first is not None


def _image(sample: Sample) -> Image.Image | ImageError:
    try:
        return sample.image()
    except ImageError as error:
        return error
