"""Worlds: unlimited scenes, each deterministic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from PIL import Image

from heal.errors import ConfigError
from heal.world import text
from heal.world.render import render
from heal.world.scene import Scene, sample_scene

Split = Literal["train", "validation", "test"]
Distribution = Literal["natural", "counter"]
SPLITS: tuple[str, ...] = get_args(Split)
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)


@dataclass(frozen=True)
class View:
    """A scene with its image and texts."""

    address: tuple[int, ...]
    scene: Scene

    def _rng(self, purpose: int, variant: int = 0) -> np.random.Generator:
        return np.random.default_rng([*self.address, purpose, variant])

    @property
    def objects(self) -> frozenset[str]:
        return self.scene.objects

    @cached_property
    def image(self) -> Image.Image:
        return render(self.scene)

    def caption(self, variant: int = 0) -> str:
        return text.caption(self.scene, self._rng(1, variant))

    def description(self, variant: int = 0) -> str:
        return text.description(self.scene, self._rng(2, variant))

    def questions(self, variant: int = 0) -> list[text.Question]:
        return text.questions(self.scene, self._rng(3, variant))


@dataclass(frozen=True)
class World:
    """`World(seed).scene(i)` always gives the same image, objects, captions, questions and answers.

    Splits never share a scene. Scenes of the `counter` distribution contradict the co-occurrences of `natural` ones.
    """

    seed: int = 0
    split: Split = "test"
    distribution: Distribution = "natural"

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(f"split cannot be {self.split!r}: choose one of {', '.join(SPLITS)}")
        if self.distribution not in DISTRIBUTIONS:
            raise ConfigError(f"distribution cannot be {self.distribution!r}: choose {' or '.join(DISTRIBUTIONS)}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, not {self.seed}")

    def scene(self, index: int) -> View:
        if index < 0:
            raise ConfigError(f"the index of a scene must be 0 or more, not {index}")
        address = (self.seed, SPLITS.index(self.split), DISTRIBUTIONS.index(self.distribution), index)
        rng = np.random.default_rng([*address, 0])
        return View(address, sample_scene(rng, self.distribution == "counter"))
