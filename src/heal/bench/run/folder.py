"""The run folder: run.json, samples.jsonl, records.jsonl, scores.json. It can be rescored without the model."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from heal.atomic_write import PART, atomic_write
from heal.bench.run.environment import partial_fingerprint
from heal.bench.run.folder_format import FORMAT, read_description, read_samples
from heal.bench.run.records import Appender, Key, Record, read
from heal.bench.tasks.base import Sample, fingerprint
from heal.errors import FileError, HealWarning, ImageError, RunError, shortened
from heal.json_values import json_values

RUN, SAMPLES, RECORDS, SCORES = "run.json", "samples.jsonl", "records.jsonl", "scores.json"
SHOWN = 4


@dataclass(frozen=True)
class ImageNotStored:
    """Placeholder for the image of a sample that was read from a run folder."""

    def load(self) -> Image.Image:
        raise ImageError("a run folder stores no images: create the task again to load them")


@dataclass(frozen=True)
class Folder:
    """A run on disk."""

    path: Path

    # ── start and resume ──────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        configuration: Mapping[str, Any],
        environment: Mapping[str, Any],
        samples: Mapping[str, Sequence[Sample]],
        resume: bool,
    ) -> None:
        """Start a run, or resume the same one. run.json is written last and marks the folder as complete."""
        if self._fresh():
            lines = [_sample_line(task, sample) for task, own in samples.items() for sample in own]
            _replace(self.path / SAMPLES, "".join(lines))
            _replace(
                self.path / RUN,
                _pretty({"format": FORMAT, "configuration": configuration, "environment": environment}),
            )
            return
        if not resume:
            raise RunError(f"{self.path} exists already: give another folder, or resume the run in it")
        self.merge_records()

    def check(self, configuration: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Raise RunError unless the folder holds the same run."""
        there = self.description()
        if partial_fingerprint(there["configuration"].get("model", {}).get("weights")):
            raise RunError(
                f"the run in {self.path} was started by an older version, which hashed only part of the weights, "
                "so it is unknown whether the model is the same. It can be scored but not resumed: start a new run"
            )
        for kind in ("tasks", "methods"):
            before, now = list(there["configuration"][kind]), list(configuration[kind])
            if before != now and sorted(before) == sorted(now):
                raise RunError(
                    f"the run in {self.path} has its {kind} in a different order: {', '.join(before)}, now "
                    f"{', '.join(now)}. The others are compared with the first method: use the same order"
                )
        if odd := differences(there["configuration"], json_values(configuration)):
            more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
            raise RunError(f"the run in {self.path} has a different configuration: {'; '.join(odd[:SHOWN])}{more}")
        if odd := differences(there.get("environment", {}), json_values(environment)):
            text = f"the run in {self.path} was started in a different environment: {'; '.join(odd[:SHOWN])}"
            warnings.warn(text, HealWarning, stacklevel=2)

    def _fresh(self) -> bool:
        """Whether the folder is empty or holds only files that are written before run.json."""
        with _using(self.path, "read"):
            names = {entry.name for entry in self.path.iterdir()}
        if RUN in names:
            return False
        if odd := sorted(name for name in names if name != SAMPLES and not name.endswith(PART)):
            raise RunError(f"{self.path} is not a run: it has {odd[0]} and no {RUN}. Give another folder")
        return True

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def description(self) -> dict[str, Any]:
        """run.json"""
        if not os.path.lexists(self.path / RUN):
            raise RunError(f"{self.path} is not a run: it has no {RUN}")
        return read_description(self.path / RUN)

    def samples(self) -> dict[str, list[Sample]]:
        """The samples by task, in the order of the task and without images, exactly as the run started."""
        found = read_samples(self.path / SAMPLES, ImageNotStored())
        tasks = self.description()["configuration"]["tasks"]
        for name, task in tasks.items():
            own = found.get(name, [])
            if len(own) != task["samples"] or fingerprint(own) != task["fingerprint"]:
                raise RunError(
                    f"{self.path / SAMPLES} was changed after the run started: the samples of {_short(name)} are "
                    "not those of run.json. Restore the file, or start a new run"
                )
        if odd := [name for name in found if name not in tasks]:
            raise RunError(
                f"{self.path / SAMPLES} has samples of the task {_short(odd[0])}, which the run does not have"
            )
        return found

    def records(self) -> dict[Key, Record]:
        """The records of all processes without repeats. Records that contradict each other are refused."""
        found: dict[Key, Record] = {}
        for path in self._files():
            for record in read(path)[0]:
                first = found.setdefault(record.key, record)
                if first.answer != record.answer:
                    raise RunError(
                        f"{path} contradicts itself or another file of records: {_short(record.method)} has two "
                        f"different answers to sample {_short(record.sample)} of {_short(record.task)}. Remove one "
                        "of the two lines"
                    )
        self._check_known(found)
        return found

    def _check_known(self, records: Iterable[Key]) -> None:
        """Refuse records of unknown tasks, methods or samples, which would silently be ignored."""
        methods = self.description()["configuration"]["methods"]
        known = {task: {sample.id for sample in own} for task, own in self.samples().items()}
        for key in records:
            if key.task not in known:
                what = f"the task {_short(key.task)}"
            elif key.method not in methods:
                what = f"the method {_short(key.method)}"
            elif key.sample not in known[key.task]:
                what = f"the sample {_short(key.sample)} of {_short(key.task)}"
            else:
                continue
            raise RunError(
                f"{self.path} has a record of {what}, which this run does not have: its files come from several "
                "runs. Remove these records, or score the other run"
            )

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("records*.jsonl"), key=lambda path: (path.name != RECORDS, path.name))

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def appender(self, shard: int | None = None) -> Appender:
        """Open the file of all records, or of the records of one process."""
        path = self.path / (RECORDS if shard is None else f"records-{shard:03d}.jsonl")
        return Appender(path, read(path)[1])

    def merge_records(self) -> None:
        """Merge all records into one file. If interrupted, records may be repeated but none is lost."""
        with _using(self.path):
            for path in self.path.glob(f".*{PART}"):  # left by a writer that was killed
                path.unlink()
        if self._files() in ([], [self.path / RECORDS]):
            return
        _replace(self.path / RECORDS, "".join(record.line() for record in self.records().values()))
        with _using(self.path):
            for path in self._files()[1:]:
                path.unlink()

    def save_scores(self, scores: Mapping[str, Any]) -> None:
        _replace(self.path / SCORES, _pretty(scores))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if needed and lock it. The operating system releases the lock when the process ends."""
        with _using(self.path):
            if os.path.lexists(self.path) and not self.path.is_dir():
                raise FileError(self.path, "it is not a folder")
            self.path.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            yield
            return
        import fcntl

        with _using(self.path, "read"):
            handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"another process is writing to {self.path}: wait for it or stop it") from None
            except OSError:
                pass  # a file system without locks
            yield
        finally:
            os.close(handle)


def differences(there: Any, here: Any, where: str = "") -> list[str]:
    """Describe each difference between two configurations."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = [*there, *(name for name in here if name not in there)]
        pairs = [(name, there.get(name), here.get(name)) for name in names]
        return [odd for name, a, b in pairs for odd in differences(a, b, f"{where}.{name}".lstrip("."))]
    return [] if there == here else [f"{where} was {_short(there)}, now {_short(here)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _sample_line(task: str, sample: Sample) -> str:
    value = {"task": task, "id": sample.id, "unit": sample.unit, "prompt": sample.prompt, "truth": dict(sample.truth)}
    return json.dumps(json_values(value), ensure_ascii=False, allow_nan=False) + "\n"


def _pretty(value: Mapping[str, Any]) -> str:
    return json.dumps(json_values(value), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _replace(path: Path, text: str) -> None:
    with _using(path):
        atomic_write(path, text)


@contextmanager
def _using(path: Path, verb: str = "written") -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(f"{shortened(str(path), 200)} cannot be {verb}: {reason}") from error
