"""The plan of a run: samples, batches and decoding options, fixed before the first answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heal.bench.tasks.base import Sample, Task, grouped_by_unit
from heal.engine.decoding import check_options
from heal.errors import ConfigError, DataError
from heal.json_values import json_values
from heal.values import check_types

HIGHEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Settings:
    """Sampling of the data and decoding options, shared by all methods of a run."""

    limit: int | None = None
    """Use only the first N samples of each task. None: all."""
    seed: int = 0
    """Seed for sampling, methods with random draws and the bootstrap."""
    batch_size: int = 16
    """Samples per batch. With do_sample=True each sample is generated alone, with its own seed."""
    max_new_tokens: int | None = None
    """Maximum length of an answer. None: the default of each task."""
    generate: Mapping[str, Any] = field(default_factory=dict)
    """Further options of generate(): num_beams, do_sample, temperature … Decoding is greedy by default."""
    prefix_cache: bool = False
    """Compute the KV cache of each prompt once and reuse it for all methods. Answers are equal up to rounding, and
    runs with short answers are faster. The cached prompts count towards the reported memory of every method, and the
    time to the first token is not meaningful."""
    skip_missing: bool = False
    """Skip samples whose images are missing instead of raising an error. The tables report the number."""

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
        """Options of generate(). Decoding is greedy by default, whatever the checkpoint's generation config says."""
        tokens = self.max_new_tokens or task.max_new_tokens
        if (least := self.generate.get("min_new_tokens", 0)) > tokens:
            raise ConfigError(f"min_new_tokens is {least}, but an answer has at most {tokens} tokens")
        return {"do_sample": False, "num_beams": 1, **self.generate, "max_new_tokens": tokens}


@dataclass(frozen=True)
class Batch:
    """Samples of one task that are answered in one call."""

    number: int
    """Index in the whole run."""
    task: str
    samples: tuple[Sample, ...]


def select_samples(tasks: Mapping[str, Task], limit: int | None) -> dict[str, tuple[Sample, ...]]:
    """The first samples of every task, after checking that their ids can be stored."""
    found = {name: tuple(task.samples())[:limit] for name, task in tasks.items()}
    for name, samples in found.items():
        if not samples:
            raise ConfigError(f"{name} has no samples")
        grouped_by_unit(samples, name)
        for sample in samples:
            if not sample.id or json_values(sample.id) != sample.id:
                raise DataError(f"{name}: {sample.id!r} cannot be the id of a sample: it cannot be written as UTF-8")
    return found


def batches(samples: Mapping[str, Sequence[Sample]], size: int, length: Callable[[str], int]) -> list[Batch]:
    """Group prompts of similar length to reduce padding. The result depends only on the samples."""
    ordered = {task: sorted(own, key=lambda sample: length(sample.prompt)) for task, own in samples.items()}
    groups = [(task, own[at : at + size]) for task, own in ordered.items() for at in range(0, len(own), size)]
    return [Batch(number, task, tuple(group)) for number, (task, group) in enumerate(groups)]


def sample_seed(seed: int, task: str, sample: str) -> int:
    """A seed per sample, independent of the method and of other samples."""
    digest = hashlib.sha256(f"{seed}\n{task}\n{sample}".encode(errors="backslashreplace")).digest()
    return int.from_bytes(digest[:6], "big")
