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
from heal.token_spans import Span, decoded, token_spans, tokens_between
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


@dataclass(frozen=True)
class ObjectName:
    """A name of an object in an answer."""

    category: str
    correct: bool
    """Whether the object is in the image."""
    step: int
    """The first token of the name."""
    last: int
    """The last token of the name."""
    order: int
    """Number of names before it."""
    first: bool
    """Whether the category is named for the first time."""


def object_names(found: Sequence[Mention], spans: Sequence[Span], objects: frozenset[str]) -> list[ObjectName]:
    """The names of an answer, in order."""
    names: list[ObjectName] = []
    known = set[str]()
    for mention in found:
        tokens = tokens_between(spans, mention.start, mention.stop)
        category = mention.category
        names.append(
            ObjectName(category, category in objects, tokens[0], tokens[-1], len(names), category not in known)
        )
        known.add(category)
    return names


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


def label(
    picture: int, trace: Trace, tokenizer: Any, objects: frozenset[str], find: Find = mentions
) -> list[ObjectToken]:
    """Label every object name of an answer as correct if it is in `objects`."""
    ids = trace.token_ids.tolist()
    found, share, parts = find(decoded(tokenizer, ids)), trace.alpha_vis, trace.mean_parts()
    return [
        ObjectToken(
            picture,
            name.category,
            name.correct,
            name.step,
            name.order,
            name.first,
            share[name.step],
            trace.types[name.step],
            trace.total[name.step],
            parts[name.step],
        )
        for name in object_names(found, token_spans(tokenizer, ids), objects)
    ]


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
            yield label(number, answer.trace, vlm.tokenizer, picture.objects, find)
            number += 1
