"""What a study is run on: a model by name, images and their objects, the split, the methods, and the batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from heal.bench.run.plan import Settings
from heal.bench.tasks import catalogue
from heal.bench.tasks.base import Sample, Task
from heal.bench.tasks.blink import SOURCE as BLINK
from heal.bench.tasks.chair import Chair
from heal.bench.tasks.chair_mentions import chair_finder
from heal.bench.tasks.image_presence import presence
from heal.bench.tasks.llava_bench import SOURCE as LLAVA
from heal.bench.tasks.mmhal import SOURCE as MMHAL
from heal.bench.tasks.task_views import FirstUnits
from heal.errors import ConfigError, HealError
from heal.methods import HEAL, Method
from heal.values import check_types
from heal.world.mentions import Mention, mentions
from heal.world.world import DISTRIBUTIONS

OFFICIAL = "official"
"""The only distribution of official data."""
IN_MINIATURE = ("pope", "chair", "mme")
"""Benchmarks that the miniature world has too. The others need official data."""
FILES = {
    "mmhal": f"MMHal-Bench: response_template.json, judge_template.txt and the images; source: {MMHAL}",
    "llava-bench": f"LLaVA-Bench: questions, context, answers_gpt4 (.jsonl), rule.json and images; source: {LLAVA}",
    "blink-twice": f"BLINK-Twice: blink_twice.jsonl and the images; source: {BLINK}",
}
"""What must be in the folder, and where it is from."""
SUBTASKS = 4
"""MME in miniature has so many scenes for each `count`."""
WORLD_SAMPLES = 100


@dataclass(frozen=True)
class Setup:
    """The conditions of a study, as a value. It holds no model, so that a plan can be made without one."""

    model: str = "embedded"
    samples: int | None = None
    """Images per benchmark and distribution. None: 100 in the miniature world, all with official data."""
    split: str = "test"
    """Split of the miniature world: validation or test."""
    distributions: tuple[str, ...] = ("natural",)
    """natural, counter or both; ("official",) if there is a data folder."""
    data: Path | None = None
    """Folder of official data. None: the miniature world."""
    seed: int = 0
    methods: Mapping[str, Method | None] = field(default_factory=dict)
    """Methods that the user asked for. Empty: each study uses those of the paper."""
    batch_size: int = 16
    max_new_tokens: int | None = None
    """Maximum length of an answer. None: the default of each benchmark."""
    need_images: bool = True
    """Whether a benchmark without its images is missing. False for plans, which need the questions only."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("samples", "batch_size", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, not {self.seed}")
        allowed = DISTRIBUTIONS if self.data is None else (OFFICIAL,)
        if not self.distributions or set(self.distributions) - set(allowed):
            shown = ", ".join(self.distributions) or "nothing"
            raise ConfigError(f"distributions must be some of {', '.join(allowed)}, not {shown}")

    @classmethod
    def on(cls, data: Path | None, **options: Any) -> Setup:
        """Official data if a folder is given, otherwise the miniature world."""
        chosen: dict[str, Any] = {} if data is None else {"distributions": (OFFICIAL,)}
        return cls(data=data, **(options | chosen))

    @property
    def images(self) -> int | None:
        """Images per benchmark and distribution; None for all images of official data."""
        return self.samples or (WORLD_SAMPLES if self.data is None else None)

    @property
    def heal(self) -> HEAL:
        """The form of HEAL to study: the first one that the user gave, or the default."""
        return next((m for m in self.methods.values() if isinstance(m, HEAL)), HEAL())

    @property
    def settings(self) -> Settings:
        """Decoding of all evaluations, the same in every study so that they share answers."""
        return Settings(
            seed=self.seed,
            batch_size=self.batch_size,
            max_new_tokens=self.max_new_tokens,
            prefix_cache=True,
        )

    def has(self, benchmark: str) -> bool:
        """Whether the miniature world has this benchmark, or there is a data folder."""
        return self.data is not None or benchmark in IN_MINIATURE

    def missing(self, benchmark: str) -> str:
        """Why this benchmark cannot be used: which data is missing, and where to get it. Empty if it can be used."""
        if benchmark not in self._missing:
            self._missing[benchmark] = self._problem(benchmark)
        return self._missing[benchmark]

    def present(self, *benchmarks: str) -> tuple[str, ...]:
        """Those of the benchmarks that can be used."""
        return tuple(benchmark for benchmark in benchmarks if not self.missing(benchmark))

    @cached_property
    def _missing(self) -> dict[str, str]:
        """By benchmark, because official files are large."""
        return {}

    def _problem(self, benchmark: str) -> str:
        if not self.has(benchmark):
            files = f" ({FILES[benchmark]})" if benchmark in FILES else ""
            return f"the miniature world has no {benchmark}: give a folder of official data with --data{files}"
        if self.data is None:
            return ""
        try:
            seen = presence(self.task(benchmark, OFFICIAL).samples())
        except HealError as error:
            return str(error)
        if not (seen.missing and self.need_images):
            return ""
        return f"{benchmark}: {seen.description()}. Put them into the folder `images` beside the questions"

    def task(self, benchmark: str, distribution: str) -> Task:
        """A benchmark by its official name (pope, chair, mme, mmhal, llava-bench, blink-twice)."""
        if (benchmark, distribution) not in self._tasks:
            self._tasks[benchmark, distribution] = self._make(benchmark, distribution)
        return self._tasks[benchmark, distribution]

    @cached_property
    def _tasks(self) -> dict[tuple[str, str], Task]:
        """One per benchmark and distribution: scenes are drawn and official files are read when a task is used."""
        return {}

    def _make(self, benchmark: str, distribution: str) -> Task:
        if self.data is not None:
            task = catalogue.make(benchmark, self.data, {})
            return task if self.samples is None else FirstUnits(task, self.samples)
        if benchmark not in IN_MINIATURE:
            raise ConfigError(self.missing(benchmark))
        count = self.samples or WORLD_SAMPLES
        if benchmark == "mme":
            count = max(1, count // SUBTASKS)
        options = {"count": count, "distribution": distribution, "split": self.split, "seed": self.seed}
        return catalogue.make(f"mini-{benchmark}", None, options)

    def tasks(self, *benchmarks: str) -> dict[str, Task]:
        """All these benchmarks on all distributions, by `task_name`."""
        return {self.task_name(b, d): self.task(b, d) for b in benchmarks for d in self.distributions}

    @staticmethod
    def task_name(benchmark: str, distribution: str) -> str:
        """The name of a task in evaluations of this setup, such as `chair natural`."""
        return f"{benchmark} {distribution}"

    def captions(self, distribution: str) -> Sequence[Sample]:
        """Images to describe. `truth["objects"]` are the objects in the image."""
        return self.task("chair", distribution).samples()

    @cached_property
    def find(self) -> Callable[[str], list[Mention]]:
        """Finds object words with their places: exact in the miniature world, CHAIR's parser on official data."""
        if self.data is None:
            return mentions
        task = catalogue.make("chair", self.data, {})
        assert isinstance(task, Chair)
        return chair_finder(task.synonyms)

    @property
    def caption_tokens(self) -> int:
        """Maximum length of a description."""
        return self.max_new_tokens or self.task("chair", self.distributions[0]).max_new_tokens

    def to_dict(self) -> dict[str, Any]:
        """JSON values for result files."""
        from heal.bench.run.names import method_name

        found = {name: getattr(self, name) for name in ("model", "samples", "split", "seed", "max_new_tokens")}
        found |= {"distributions": list(self.distributions), "data": None if self.data is None else str(self.data)}
        return found | {"methods": {name: method_name(method) for name, method in self.methods.items()}}
