"""What a run asks: which samples, in which batches, decoded how. Fixed before the first answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heal.bench.tasks.base import Sample, Task, together
from heal.engine.decoding import check_options
from heal.errors import ConfigError, DataError
from heal.json_values import json_values
from heal.values import check_types

HIGHEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Settings:
    """How samples are chosen and answers decoded: the same for every method of a run."""

    limit: int | None = None
    """The first so many samples of each task. None: all."""
    seed: int = 0
    """Of sampling, of methods that draw, and of the bootstrap."""
    batch_size: int = 16
    """Samples answered at once. With do_sample=True each is answered alone, from a seed of its own."""
    max_new_tokens: int | None = None
    """The most tokens of an answer. None: as each task has it."""
    generate: Mapping[str, Any] = field(default_factory=dict)
    """Further options of generate(): num_beams, do_sample, temperature … Without any it is greedy."""
    prefix_cache: bool = False
    """Read each prompt once for all methods: the same answers but for rounding, sooner where answers are short. What
    is kept of prompts counts in the memory of every method, and the time of a first token is of no use."""
    skip_missing: bool = False
    """Leave out samples whose images are missing, in the place of an error; the figures say how many."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("limit", "batch_size", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}")
        if not 0 <= self.seed <= HIGHEST_SEED:
            raise ConfigError(f"seed must be 0 or more and at most {HIGHEST_SEED}, not {self.seed}")
        check_options(self.generate)

    @property
    def sampled(self) -> bool:
        return bool(self.generate.get("do_sample", False))

    def decoding(self, task: Task) -> dict[str, Any]:
        """Greedy unless told otherwise, whatever the checkpoint's own configuration says."""
        tokens = self.max_new_tokens or task.max_new_tokens
        if (least := self.generate.get("min_new_tokens", 0)) > tokens:
            raise ConfigError(f"min_new_tokens is {least}, but an answer has at most {tokens} tokens")
        return {"do_sample": False, "num_beams": 1, **self.generate, "max_new_tokens": tokens}


@dataclass(frozen=True)
class Batch:
    """Samples of one task that are answered at once."""

    number: int
    """In the whole run."""
    task: str
    samples: tuple[Sample, ...]


def chosen(tasks: Mapping[str, Task], limit: int | None) -> dict[str, tuple[Sample, ...]]:
    """The first samples of every task. Each can be told apart from the others in a file of records."""
    found = {name: tuple(task.samples())[:limit] for name, task in tasks.items()}
    for name, samples in found.items():
        if not samples:
            raise ConfigError(f"{name} has no samples")
        together(samples, name)
        for sample in samples:
            if not sample.id or json_values(sample.id) != sample.id:
                raise DataError(f"{name}: {sample.id!r} cannot be the id of a sample: it cannot be written as UTF-8")
    return found


def batches(samples: Mapping[str, Sequence[Sample]], size: int, length: Callable[[str], int]) -> list[Batch]:
    """Prompts of like length together, so that little is padded; the same for every run of these samples."""
    ordered = {task: sorted(own, key=lambda sample: length(sample.prompt)) for task, own in samples.items()}
    groups = [(task, own[at : at + size]) for task, own in ordered.items() for at in range(0, len(own), size)]
    return [Batch(number, task, tuple(group)) for number, (task, group) in enumerate(groups)]


def sample_seed(seed: int, task: str, sample: str) -> int:
    """Its own for each sample, the same for every method, whatever else is in the run."""
    digest = hashlib.sha256(f"{seed}\n{task}\n{sample}".encode(errors="backslashreplace")).digest()
    return int.from_bytes(digest[:6], "big")
