"""Labelled object words: features of the words that a model used for images whose objects are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from heal.detect.features import Features, Measurements, features
from heal.detect.words import Find, object_words

COLUMNS = ("picture", "step", "order", "first", "hallucinated")
"""What is known of every labelled word besides its features."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled object words of many answers, as arrays with one entry per word."""

    features: Features
    """With one row per word."""
    picture: np.ndarray
    """The number of the image: words of one image are not independent."""
    step: np.ndarray
    """The position of the first token in its answer."""
    order: np.ndarray
    """The number of object words before it."""
    first: np.ndarray
    """Whether its object was not named before."""
    hallucinated: np.ndarray
    category: np.ndarray
    """The names of the objects."""
    captions: int
    """Number of answers, with those that name nothing."""

    def __len__(self) -> int:
        return len(self.step)

    def select(self, at: np.ndarray) -> Labelled:
        """Some of the words. The number of answers becomes that of the images that are left."""
        values = {name: own[at] for name, own in self.features.values.items()}
        arrays = {name: getattr(self, name)[at] for name in (*COLUMNS, "category")}
        chosen = Features(values, self.features.layers, self.features.heads)
        return Labelled(chosen, **arrays, captions=len(np.unique(arrays["picture"])))

    def of_pictures(self, pictures: Sequence[int] | np.ndarray) -> Labelled:
        return self.select(np.flatnonzero(np.isin(self.picture, pictures)))


def label(
    tokenizer: Any,
    ids: Sequence[int],
    measured: Measurements,
    objects: frozenset[str],
    find: Find,
    picture: int,
    families: Sequence[str] | None = None,
) -> Labelled:
    """The object words of one answer. Those that are not in `objects` are hallucinated."""
    words = object_words(tokenizer, ids, find)
    found = features(measured, words, families)
    starts = np.array([word.start for word in words], int)
    named = [word.category for word in words]
    values = {name: own[starts] for name, own in found.values.items()}
    return Labelled(
        Features(values, found.layers, found.heads),
        picture=np.full(len(words), picture),
        step=starts,
        order=np.arange(len(words)),
        first=np.array([name not in named[:index] for index, name in enumerate(named)], bool),
        hallucinated=np.array([name not in objects for name in named], bool),
        category=np.array(named, dtype=str),
        captions=1,
    )


def joined(parts: Sequence[Labelled]) -> Labelled:
    """All words of several parts, in order."""
    first = parts[0].features
    values = {name: np.concatenate([part.features.values[name] for part in parts]) for name in first.values}
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in (*COLUMNS, "category")}
    captions = sum(part.captions for part in parts)
    return Labelled(Features(values, first.layers, first.heads), **arrays, captions=captions)


def as_arrays(labelled: Labelled) -> dict[str, np.ndarray]:
    """For `numpy.savez`."""
    found = {f"features {name}": own for name, own in labelled.features.values.items()}
    found |= {f.name: getattr(labelled, f.name) for f in fields(labelled) if f.name not in ("features", "captions")}
    shape = (labelled.features.layers, labelled.features.heads, labelled.captions)
    return found | {"shape": np.array(shape)}


def from_arrays(arrays: dict[str, np.ndarray]) -> Labelled:
    values = {name.removeprefix("features "): own for name, own in arrays.items() if name.startswith("features ")}
    layers, heads, captions = arrays["shape"].tolist()
    columns = {name: arrays[name] for name in (*COLUMNS, "category")}
    return Labelled(Features(values, layers, heads), **columns, captions=captions)
