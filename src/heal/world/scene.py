"""Scenes: which objects, how many, in which colours and where. All are sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heal.world.categories import CATEGORIES, COLOURS, NAMES
from heal.world.statistics import statistics

CANVAS = 96
FEWEST, MOST = 3, 7  # number of categories in a scene
INSTANCES = 11
COUNTS = (0.62, 0.22, 0.11, 0.05)
SMALL = 0.25  # share of objects drawn so small that they are hard to see


@dataclass(frozen=True)
class Box:
    """Position of one instance: left, top and side, in pixels."""

    x: int
    y: int
    size: int

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.size / 2, self.y + self.size / 2

    def overlap(self, other: Box) -> float:
        """Share of the smaller box that is covered."""
        width = min(self.x + self.size, other.x + other.size) - max(self.x, other.x)
        height = min(self.y + self.size, other.y + other.size) - max(self.y, other.y)
        return max(width, 0) * max(height, 0) / min(self.size, other.size) ** 2


@dataclass(frozen=True)
class Thing:
    """All instances of one category."""

    category: str
    colour: str | None
    boxes: tuple[Box, ...]

    @property
    def count(self) -> int:
        return len(self.boxes)

    @property
    def centre(self) -> tuple[float, float]:
        xs, ys = zip(*(box.centre for box in self.boxes), strict=True)
        return sum(xs) / len(xs), sum(ys) / len(ys)

    @property
    def area(self) -> int:
        return sum(box.size**2 for box in self.boxes)

    @property
    def side(self) -> str:
        x = self.centre[0] / CANVAS
        return "left" if x < 0.42 else "right" if x > 0.58 else "middle"

    @property
    def height(self) -> str:
        y = self.centre[1] / CANVAS
        return "top" if y < 0.42 else "bottom" if y > 0.58 else "middle"


@dataclass(frozen=True)
class Scene:
    """The ground truth of an image."""

    things: tuple[Thing, ...]
    look: int
    """Seed of background, noise and blur."""

    @property
    def objects(self) -> frozenset[str]:
        return frozenset(thing.category for thing in self.things)

    def thing(self, category: str) -> Thing | None:
        return next((t for t in self.things if t.category == category), None)


def sample_scene(rng: np.random.Generator, counter: bool) -> Scene:
    kinds = counter_kinds(rng) if counter else natural_kinds(rng)
    return Scene(_placed(rng, kinds), int(rng.integers(2**31)))


def natural_kinds(rng: np.random.Generator) -> list[int]:
    """A set of categories that co-occur in real images, large enough to be worth describing."""
    stats = statistics()
    while True:
        archetype = rng.choice(len(stats.weights), p=stats.weights)
        present = np.flatnonzero(rng.random(len(NAMES)) < stats.chances[archetype])
        if FEWEST <= len(present) <= MOST:
            return [int(i) for i in rng.permutation(present)]


def counter_kinds(rng: np.random.Generator) -> list[int]:
    """An unlikely set: likely categories are removed, and categories that never co-occur with the rest are added."""
    stats = statistics()
    while True:
        kinds = natural_kinds(rng)
        expected = sorted(kinds, key=lambda i: -stats.given([j for j in kinds if j != i])[i])
        gone = set(expected[: max(1, len(kinds) // 3)])
        kept = [i for i in kinds if i not in gone]
        if not kept:
            continue
        chance = stats.given(kept)
        strange = [i for i in np.argsort(chance)[: len(NAMES) // 3] if i not in kinds]
        added = [int(i) for i in rng.choice(strange, size=int(rng.integers(1, 3)), replace=False)]
        if FEWEST <= len(kept) + len(added) <= MOST:
            return [int(i) for i in rng.permutation(kept + added)]


def _placed(rng: np.random.Generator, kinds: list[int]) -> tuple[Thing, ...]:
    taken: list[Box] = []
    things = []
    for order, kind in enumerate(kinds):
        category = CATEGORIES[kind]
        room = INSTANCES - len(taken) - (len(kinds) - order - 1)
        count = min(1 + int(rng.choice(len(COUNTS), p=COUNTS)), max(room, 1))
        small = rng.random() < SMALL
        low, high = (11, 16) if small else (24, 40) if category.large else (17, 32)
        boxes = []
        for _ in range(count):
            box = _free(rng, int(rng.integers(low, high + 1) * (0.85 if count > 1 else 1)), taken)
            boxes.append(box)
            taken.append(box)
        colour = str(rng.choice(list(COLOURS))) if category.tinted else None
        things.append(Thing(category.name, colour, tuple(boxes)))
    return tuple(things)


def _free(rng: np.random.Generator, size: int, taken: list[Box]) -> Box:
    """The least covered of a few random positions. Some overlap remains, as in real images."""
    places = [
        Box(int(rng.integers(0, CANVAS - size + 1)), int(rng.integers(0, CANVAS - size + 1)), size) for _ in range(6)
    ]
    return min(places, key=lambda box: sum(box.overlap(other) for other in taken))
