"""POPE, CHAIR and MME in the miniature world: the official recipes and figures, without data files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from heal.bench.tasks import chair, mme, pope
from heal.bench.tasks.base import Number, Sample, Task, grouped_by_unit
from heal.bench.tasks.word_tokens import tokens
from heal.errors import ConfigError
from heal.world import View, World
from heal.world import text as world_text
from heal.world.categories import INDEX, NAMES
from heal.world.mentions import mentions
from heal.world.statistics import statistics
from heal.world.world import DISTRIBUTIONS

MOST = 100_000
"""Maximum number of scenes of a task, because all samples are created in advance."""
EACH = 3  # questions per image about present objects, and as many about absent ones
SUFFIX = " Please answer yes or no."
TOPICS = ("existence", "count", "position", "color")
POPE, MME = 11, 12  # separates the random streams of the tasks from each other and from the world's


@dataclass(frozen=True)
class SceneImage:
    """The image of a scene."""

    world: World
    index: int

    def load(self) -> Image.Image:
        return _picture(self.world, self.index).copy()


@lru_cache(maxsize=128)
def _picture(world: World, index: int) -> Image.Image:
    """Draw a scene. Cached because consecutive questions are about the same scene."""
    return world.scene(index).image


@dataclass(frozen=True)
class Miniature(Task):
    """Base class of tasks on the scenes of a world."""

    count: int = 100
    """Number of scenes."""
    distribution: str = "natural"
    """natural, or counter (scenes with unlikely combinations of objects)."""
    split: str = "test"
    """validation (for choosing options) or test (for reporting)."""
    seed: int = 0
    """Seed of the world."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.count <= MOST:
            raise ConfigError(f"count must be from 1 to {MOST}, not {self.count}")
        pope.check_choice("split", self.split, ("validation", "test"))
        pope.check_choice("distribution", self.distribution, DISTRIBUTIONS)
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, not {self.seed}")

    @property
    def world(self) -> World:
        return World(self.seed, self.split, self.distribution)  # type: ignore[arg-type]

    def rng(self, view: View, purpose: int) -> np.random.Generator:
        """A generator per scene, so that the questions about a scene do not depend on `count`."""
        return np.random.default_rng([*view.address, purpose])

    def sample(self, index: int, name: str, prompt: str, truth: Mapping[str, Any]) -> Sample:
        place = f"{self.distribution}-{self.split}-{self.seed}-{index}"
        return Sample(f"{place}/{name}" if name else place, place, prompt, truth, SceneImage(self.world, index))

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        return grouped_by_unit(self.create_samples(), self.name)

    @abstractmethod
    def create_samples(self) -> Sequence[Sample]:
        """All samples, in order."""

    def samples(self) -> Sequence[Sample]:
        return self._samples


@dataclass(frozen=True)
class MiniPope(Miniature):
    """POPE: questions about three present and three absent objects per image, by the official recipe."""

    name: ClassVar[str] = "mini-pope"
    summary: ClassVar[str] = "POPE in the miniature world: random, popular and adversarial questions."
    max_new_tokens: ClassVar[int] = 10
    headline: ClassVar[str] = "f1"

    splits: tuple[str, ...] = pope.SPLITS
    """How absent objects are chosen: any of random, popular, adversarial."""
    parser: str = "official"
    """official (no verdict counts as yes) or strict (no verdict counts as wrong)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pope.check_choice("parser", self.parser, pope.PARSERS)
        pope.check_splits(self.splits, pope.SPLITS)

    def create_samples(self) -> list[Sample]:
        return [s for index in range(self.count) for s in self._of(index, self.world.scene(index))]

    def _of(self, index: int, view: View) -> list[Sample]:
        """Questions about one scene: the same present objects in every split, and as many absent ones. Questions that
        occur in several splits are asked once."""
        splits: dict[str, list[str]] = {}
        for split in self.splits:
            rng = self.rng(view, POPE)
            present = [str(name) for name in rng.permutation(sorted(view.objects))[:EACH]]
            absent = absent_objects(split, view.objects, present, rng)
            for name in (n for pair in zip(present, absent, strict=True) for n in pair):
                splits.setdefault(name, []).append(split)
        found = []
        for name, asked in splits.items():
            question = world_text.existence(name, name in view.objects)
            facts = {"label": question.answer.lower(), "splits": asked, "object": name}
            found.append(self.sample(index, name, question.text, facts))
        return found

    def remarks(self, samples: Sequence[Sample]) -> list[str]:
        return pope.split_remarks(self.splits, samples)

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return pope.read(text, self.parser)

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return pope.split_counts(self.splits, samples, parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return pope.split_score(self.splits, totals)


def absent_objects(
    split: str, objects: frozenset[str], present: Sequence[str], rng: np.random.Generator
) -> list[str]:
    """Choose `len(present)` absent objects: random ones, the most frequent ones, or those that most often co-occur
    with each present object."""
    absent = [name for name in NAMES if name not in objects]
    if split == "random":
        return [str(name) for name in rng.permutation(absent)[: len(present)]]
    stats = statistics()
    if split == "popular":
        return sorted(absent, key=lambda name: -stats.marginal[INDEX[name]])[: len(present)]
    chosen: list[str] = []
    joint = stats.joint
    for name in present:
        left = [other for other in absent if other not in chosen]
        chosen.append(max(left, key=lambda other: joint[INDEX[name], INDEX[other]]))
    return chosen


@dataclass(frozen=True)
class MiniChair(Miniature):
    """CHAIR: descriptions of scenes compared with their objects."""

    name: ClassVar[str] = "mini-chair"
    summary: ClassVar[str] = "CHAIR in the miniature world: objects hallucinated in long descriptions."
    max_new_tokens: ClassVar[int] = 128
    headline: ClassVar[str] = "chair_s"
    higher_is_better: ClassVar[bool] = False

    def create_samples(self) -> list[Sample]:
        views = [(index, self.world.scene(index)) for index in range(self.count)]
        return [self.sample(i, "", chair.PROMPT, {"objects": sorted(view.objects)}) for i, view in views]

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return {"mentions": [mention.category for mention in mentions(text)], "words": len(tokens(text))}

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return chair.total_counts([s.truth["objects"] for s in samples], parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return chair.chair_figures(totals)

    def cuts(self, text: str) -> list[str]:
        return chair.sentence_cuts(text)


@dataclass(frozen=True)
class MiniMme(Miniature):
    """MME: existence, count, position and colour, with one yes and one no question per image."""

    name: ClassVar[str] = "mini-mme"
    summary: ClassVar[str] = "The hallucination subset of MME in the miniature world."
    max_new_tokens: ClassVar[int] = 10
    headline: ClassVar[str] = "total"

    subtasks: tuple[str, ...] = TOPICS
    """Any of existence, count, position, color, with `count` scenes each."""
    parser: str = "official"
    """official (reads four characters) or strict (reads words)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pope.check_choice("parser", self.parser, pope.PARSERS)
        pope.check_splits(self.subtasks, TOPICS)

    def create_samples(self) -> list[Sample]:
        return [sample for subtask in self.subtasks for sample in self._of(subtask)]

    def _of(self, subtask: str) -> list[Sample]:
        """The first scenes that allow such a question: some have no colours, or no two objects side by side."""
        found: list[Sample] = []
        index = 0
        while len(found) < 2 * self.count:
            view = self.world.scene(index)
            for question in pair_of_questions(subtask, view, self.rng(view, MME + TOPICS.index(subtask))):
                facts = {"label": question.answer.lower(), "subtask": subtask, "pair": index}
                found.append(self.sample(index, f"{subtask}-{facts['label']}", question.text + SUFFIX, facts))
            index += 1
        return found

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return mme.read(text, self.parser)

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return mme.pair_counts(self.subtasks, [s.truth for s in samples], parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return mme.pair_score(self.subtasks, totals)


def pair_of_questions(subtask: str, view: View, rng: np.random.Generator) -> list[world_text.Question]:
    if subtask == "existence":
        return world_text.existence_questions(view.scene, rng, pairs=1)
    if subtask == "count":
        return world_text.count_questions(view.scene, rng)
    if subtask == "position":
        return world_text.position_questions(view.scene, rng)
    return world_text.colour_questions(view.scene, rng)
