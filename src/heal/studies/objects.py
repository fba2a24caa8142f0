"""Which of the objects that a model names are there, and what its heads did when it named them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, UInt8

from heal.methods.base import Method
from heal.methods.heal import HEAL
from heal.trace import Trace
from heal.vlm import VLM
from heal.world.mentions import Mention, mentions

Find = Callable[[str], list[Mention]]
PROMPT = "Please describe this image in detail."


@runtime_checkable
class Labelled(Protocol):
    """A picture of which it is known what it shows: a view of the world, or one of your own."""

    @property
    def image(self) -> Any: ...

    @property
    def objects(self) -> frozenset[str]: ...


@dataclass(frozen=True, eq=False)
class ObjectToken:
    """The token with which a name begins, and the heads at the step that made it."""

    picture: int
    category: str
    correct: bool
    step: int
    """Its place in the answer, from 0 on."""
    order: int
    """How many names came before it."""
    first: bool
    """Whether its object is named for the first time."""
    alpha_vis: Float32[np.ndarray, "layer head"]
    types: UInt8[np.ndarray, "layer head"]
    total: Float32[np.ndarray, "layer head"]


def steps_of(tokens: Sequence[str], found: Sequence[Mention]) -> list[int]:
    """The token with which each mention begins, in the text that the tokens make together."""
    ends = np.cumsum([len(token) for token in tokens])
    return [int(np.searchsorted(ends, mention.start, side="right")) for mention in found]


def label(picture: int, trace: Trace, objects: frozenset[str], find: Find = mentions) -> list[ObjectToken]:
    """Every name in an answer, correct if its object is among these."""
    found = find("".join(trace.tokens))
    share, known, out = trace.alpha_vis, set[str](), []
    for order, (mention, step) in enumerate(zip(found, steps_of(trace.tokens, found), strict=True)):
        out.append(
            ObjectToken(
                picture,
                mention.category,
                mention.category in objects,
                step,
                order,
                mention.category not in known,
                share[step],
                trace.types[step],
                trace.total[step],
            )
        )
        known.add(mention.category)
    return out


def describe(
    vlm: VLM,
    pictures: Iterable[Labelled],
    method: Method | None = None,
    batch: int = 16,
    max_new_tokens: int = 128,
    find: Find = mentions,
) -> Iterator[list[ObjectToken]]:
    """The names in the greedy description of each picture. Without a method the plain model is measured."""
    method = method or HEAL(calibrate=False)
    number, source = 0, iter(pictures)
    while some := list(islice(source, batch)):
        answers = vlm.generate(
            [picture.image for picture in some],
            [PROMPT] * len(some),
            method=method,
            trace=True,
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        for picture, answer in zip(some, answers, strict=True):
            yield label(number, answer.trace, picture.objects, find)
            number += 1
