"""Run tasks with several methods, store every answer and summarise the results."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from heal.bench.run import environment
from heal.bench.run.answering import Progress, Watch, Work
from heal.bench.run.folder import Folder
from heal.bench.run.names import Methods, Tasks, named_methods, named_tasks
from heal.bench.run.plan import Settings, batches, select_samples
from heal.bench.run.shard import Shard
from heal.bench.score.summary import Summary, rescore, summarise
from heal.bench.tasks import catalogue
from heal.bench.tasks.base import Sample, Task, fingerprint
from heal.bench.tasks.image_presence import presence, samples_with_images
from heal.errors import HealWarning, RunError
from heal.methods import Method
from heal.vlm import VLM

__all__ = ["Progress", "Settings", "Summary", "run"]


def run(
    vlm: VLM,
    tasks: Tasks,
    methods: Methods,
    out: str | Path,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    shard: Shard | None = None,
) -> Summary:
    """Run all tasks with all methods and store answers and scores in the folder `out`.

    Tasks and methods are sequences, or mappings from names of your choice. None is the plain model. The other
    methods are compared with the first one. `resume` continues an interrupted run, or starts it if there is none.
    """
    settings, shard = settings or Settings(), shard or Shard.current()
    by_task, by_method = named_tasks(tasks), named_methods(methods)
    for method in by_method.values():
        check(vlm, method)
    asked = select_samples(by_task, settings.limit)
    samples = samples_with_images(asked, settings.skip_missing)
    left_out = {name: len(asked[name]) - len(own) for name, own in samples.items()}
    for name, task in by_task.items():
        lost = f"{presence(asked[name]).description()}. {left_out[name]} of {len(asked[name])} samples are skipped"
        for remark in [lost] * (left_out[name] > 0) + task.remarks(samples[name]):
            warnings.warn(f"{name}: {remark}", HealWarning, stacklevel=2)
    size = 1 if settings.sampled else settings.batch_size
    every = batches(samples, size, lambda prompt: len(vlm.tokenizer(prompt)["input_ids"]))
    configuration, surroundings = describe(vlm, by_task, by_method, samples, settings), environment.environment()
    for name, number in left_out.items():
        if number:
            configuration["tasks"][name]["left_out"] = number
    folder = Folder(Path(out))
    with folder.locked() if shard.main else nullcontext():
        if shard.main:
            folder.start(configuration, surroundings, samples, resume)
        shard.wait()
        folder.check(configuration, surroundings)
        work = Work(vlm, by_task, by_method, settings, folder)
        work.answer(shard.share(every), None if shard.count == 1 else shard.index, watch)
        shard.wait()
        if shard.main:
            folder.merge_records()
            summary = rescore(folder.path, tasks=by_task)
        shard.wait()
    summary = summary if shard.main else summarise(folder, tasks=by_task)
    check_answered(summary, folder)
    return summary


def check_answered(summary: Summary, folder: Folder) -> None:
    """Raise an error if every sample failed."""
    if summary.missing or any(row.answered for row in summary.rows):
        return
    error = next(record.error for record in folder.records().values() if record.error is not None)
    raise RunError(
        f"no sample was answered: all {summary.failed} answers failed, the first with {error}. {folder.path} has "
        "all error messages: fix the cause and start a new run"
    )


def check(vlm: VLM, method: Method | None) -> None:
    """Raise an error if the method does not support the model, before a folder is created."""
    if method is not None:
        with method.attach(vlm.model, special_ids=vlm.tokenizer.all_special_ids):
            pass


def describe(
    vlm: VLM,
    tasks: Mapping[str, Task],
    methods: Mapping[str, Method | None],
    samples: Mapping[str, Sequence[Sample]],
    settings: Settings,
) -> dict[str, Any]:
    """Everything that answers depend on. A run can only be resumed with the same configuration."""
    return {
        "model": {
            "name": vlm.name,
            "dtype": str(vlm.model.dtype).removeprefix("torch."),
            "device": vlm.device.type,
            "weights": environment.weights_fingerprint(vlm.model),
            "settings": environment.settings_fingerprint(vlm),
        },
        "tasks": {
            name: {
                "name": task.name,
                "options": catalogue.options_of(task) if is_dataclass(task) else {},
                "samples": len(samples[name]),
                "fingerprint": fingerprint(samples[name]),
                "decoding": settings.decoding(task),
            }
            for name, task in tasks.items()
        },
        "methods": method_options(methods),
        **{name: value for name, value in asdict(settings).items() if name != "skip_missing"},
    }


def method_options(methods: Mapping[str, Method | None]) -> dict[str, Any]:
    """Methods by name with all their options. None is the plain model."""
    return {
        name: None if method is None else {"name": method.name, "options": method.options()}
        for name, method in methods.items()
    }
