"""Label the objects that a model names as correct or hallucinated, with the head scores at these tokens."""

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
    """An image with known objects: a view of the miniature world or one of your own."""

    @property
    def image(self) -> Any: ...

    @property
    def objects(self) -> frozenset[str]: ...


@dataclass(frozen=True, eq=False)
class ObjectToken:
    """The first token of an object name, with the head scores of its step."""

    picture: int
    category: str
    correct: bool
    step: int
    """Position in the answer, starting at 0."""
    order: int
    """Number of names before it."""
    first: bool
    """Whether the object is named for the first time."""
    alpha_vis: Float32[np.ndarray, "layer head"]
    types: UInt8[np.ndarray, "layer head"]
    total: Float32[np.ndarray, "layer head"]
    parts: Float32[np.ndarray, " two"]
    """I_vis / I_total and I_lang / I_total over the synergy heads."""


def steps_of(tokens: Sequence[str], found: Sequence[Mention]) -> list[int]:
    """The index of the first token of each mention."""
    ends = np.cumsum([len(token) for token in tokens])
    return [int(np.searchsorted(ends, mention.start, side="right")) for mention in found]


def label(picture: int, trace: Trace, objects: frozenset[str], find: Find = mentions) -> list[ObjectToken]:
    """Label every object name of an answer as correct if it is in `objects`."""
    found = find("".join(trace.tokens))
    share, parts, known, out = trace.alpha_vis, trace.mean_parts(), set[str](), []
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
                parts[step],
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
    """Yield the object names in the greedy description of each image. By default, the plain model is measured."""
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
