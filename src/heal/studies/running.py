"""Measure the parts of studies in a folder, and write their reports. A killed run continues where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from heal.bench.run import environment
from heal.bench.run.answering import SAMPLE_ERRORS
from heal.bench.run.folder import RUN, Folder
from heal.bench.run.names import named_methods, named_tasks
from heal.bench.run.plan import batches, select_samples
from heal.bench.run.runner import Progress, describe, run
from heal.bench.run.shard import Shard
from heal.bench.score.summary import summarise
from heal.bench.tasks.base import Sample
from heal.bench.tasks.stored_replies import FOLDER, most_used
from heal.engine.layout import Layout
from heal.errors import RunError
from heal.studies.output import write_report
from heal.studies.parts import ERROR, Evaluated, Evaluation, Measured, Measurement, Part, Records, key
from heal.studies.reuse import Asked, reusable
from heal.studies.setup import Setup
from heal.studies.storage import Store
from heal.studies.study import Found, Report, Study
from heal.studies.usable import usable
from heal.vlm import VLM

PARTS = "parts"
"""Subfolder with the measured parts of all studies."""

Watch = Callable[[str, int, int], None]
"""Called with a description, the number of finished answers and the total."""


def _silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class StudyRunner:
    """Where parts are measured: a model, a folder, and folders whose answers may be reused."""

    vlm: VLM
    out: Path
    records: tuple[Path, ...] = ()
    """Folders of `heal eval`."""
    shard: Shard = field(default_factory=Shard)
    watch: Watch = _silent

    def study(self, study: Study, setup: Setup) -> Report:
        """Measure what is missing, and write the report to the study's folder."""
        model = model_facts(self.vlm)
        found = Found(setup, self.measured(study.parts(setup), model), model)
        further = study.follow_up(found)
        found = Found(setup, {**found.parts, **self.measured(further, model)}, model)
        report = study.report(found)
        if self.shard.main:
            write_report(self.out / study.name, study, setup, model, report)
        return report

    def measured(self, parts: Sequence[Part], model: Mapping[str, Any]) -> dict[str, Evaluated | Records]:
        """The results by the name of the part."""
        found: dict[str, Evaluated | Records] = {}
        for part in parts:
            if part.name in found:
                raise RunError(f"two parts of a study are called {part.name!r}")
            folder = self.out / PARTS / key(part, identity(model))
            found[part.name] = (
                self._measurement(part, folder, model)
                if isinstance(part, Measurement)
                else self._evaluation(part, folder)
            )
        return found

    def _measurement(self, part: Measurement, path: Path, model: Mapping[str, Any]) -> Records:
        store, size = Store(path), part.batch_size
        groups = [part.samples[at : at + size] for at in range(0, len(part.samples), size)]
        with Folder(path).locked() if self.shard.main else nullcontext():
            if self.shard.main:
                store.start(part.content() | {"model": identity(model)})
            self.shard.wait()
            missing = store.missing(len(groups)) if self.shard.main else None
            self.shard.wait()  # a damaged file is removed by the first process only
            missing = store.missing(len(groups)) if missing is None else missing
            self.shard.wait()  # all processes have the same list before the first batch is written
            mine = self.shard.share(missing)
            done, total = 0, sum(len(groups[number]) for number in mine)
            for number in mine:
                self.watch(part.name, done, total)
                store.write(number, measured_batch(self.vlm, part, groups[number]))
                done += len(groups[number])
            if mine:
                self.watch(part.name, done, total)
            self.shard.wait()
        return store.records(len(groups), len(part.samples))

    def _evaluation(self, part: Evaluation, path: Path) -> Evaluated:
        methods, left_out = usable(self.vlm, part.methods) if part.leave_out else (part.methods, {})
        part = replace(part, methods=methods)
        if self.shard.main and not part.timed:
            self._take_answers(part, path)
        self.shard.wait()

        def report(now: Progress) -> None:
            self.watch(f"{part.name}, {now.task}", now.done, now.total)

        summary = run(
            self.vlm, part.tasks, part.methods, path, part.settings, resume=True, watch=report, shard=self.shard
        )
        ask = most_used(path / FOLDER) if any(task.judged for task in part.tasks.values()) else None
        if ask is not None:
            summary = summarise(Folder(path), ask, part.tasks)
        return Evaluated.of(summary, Folder(path), left_out)

    def _take_answers(self, part: Evaluation, path: Path) -> None:
        """Start the run folder of the part with answers of other runs, unless it has been started already."""
        if (path / RUN).is_file():
            return
        tasks, methods = named_tasks(part.tasks), named_methods(part.methods)
        samples = select_samples(tasks, part.settings.limit)
        size = 1 if part.settings.sampled else part.settings.batch_size
        tokenizer = self.vlm.tokenizer
        every = batches(samples, size, lambda prompt: len(tokenizer(prompt)["input_ids"]))
        configuration = describe(self.vlm, tasks, methods, samples, part.settings)
        others = [*self.records, *self._finished(path)]
        found = reusable(Asked(configuration, samples, every), others)
        if not found:
            return
        folder = Folder(path)
        with folder.locked():
            folder.start(configuration, environment.environment(), samples, resume=True)
            with folder.appender() as file:
                file.add(list(found.values()))

    def _finished(self, path: Path) -> Iterable[Path]:
        """The run folders of other parts."""
        return (other for other in sorted((self.out / PARTS).glob("evaluation-*")) if other != path)


def measured_batch(vlm: VLM, part: Measurement, samples: Sequence[Sample]) -> list[Measured]:
    """One result for each sample. If a batch fails, its samples are measured one by one, and a sample that fails
    alone has its error as its result."""
    try:
        found = list(part.measure(vlm, samples))
    except SAMPLE_ERRORS as error:
        if len(samples) == 1:
            return [Measured(samples[0].id, {ERROR: f"{type(error).__name__}: {error}"})]
        return [result for sample in samples for result in measured_batch(vlm, part, [sample])]
    except torch.OutOfMemoryError:
        if len(samples) == 1:
            raise
        torch.cuda.empty_cache()
        half = len(samples) // 2
        return measured_batch(vlm, part, samples[:half]) + measured_batch(vlm, part, samples[half:])
    if [m.id for m in found] != [s.id for s in samples]:
        raise RunError(f"{part.kind} did not return one result for each sample, in order")
    return found


def model_facts(vlm: VLM) -> dict[str, Any]:
    """What a report says about the model."""
    layout = Layout.of(vlm.model, frozenset(vlm.tokenizer.all_special_ids))
    return {
        "name": vlm.name,
        "family": layout.family,
        "layers": len(layout.layers),
        "heads": layout.heads,
        "dtype": str(vlm.model.dtype).removeprefix("torch."),
        "device": vlm.device.type,
        "weights": environment.weights_fingerprint(vlm.model),
        "settings": environment.settings_fingerprint(vlm),
    }


def identity(model: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that measurements depend on. The name of the model is not one of them."""
    return {name: model[name] for name in ("dtype", "device", "weights", "settings")}
