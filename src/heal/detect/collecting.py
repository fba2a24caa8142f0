"""Describe labelled images and collect the features of the object words, in parts that survive an interruption."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from heal import strict_json
from heal.atomic_write import atomic_write
from heal.detect.features import FAMILIES, names_of, whole
from heal.detect.labels import Labelled, as_arrays, from_arrays, joined, label
from heal.detect.words import finder
from heal.errors import DataError
from heal.methods.heal import HEAL
from heal.tracing import versions

if TYPE_CHECKING:
    from heal.vlm import VLM

PROMPT = "Please describe this image in detail."
SETUP = "setup.json"
MEASURE = HEAL(calibrate=False)


@runtime_checkable
class Picture(Protocol):
    """An image with known objects: a view of the miniature world or one of your own."""

    @property
    def image(self) -> Any: ...

    @property
    def objects(self) -> frozenset[str]: ...


@dataclass(frozen=True)
class Setup:
    """What decides the features: equal setups give equal parts."""

    data: str
    """Name of the images."""
    words: str = "coco"
    method: HEAL = MEASURE
    batch: int = 16
    max_new_tokens: int = 128
    prompt: str = PROMPT

    def record(self, vlm: VLM) -> dict[str, Any]:
        told = {
            "model": vlm.name,
            "data": self.data,
            "words": self.words,
            "method": self.method.options(),
            "batch": self.batch,
            "max_new_tokens": self.max_new_tokens,
            "prompt": self.prompt,
            "features": names_of(whole(list(FAMILIES), 1, 1), 1, 1),
            "versions": versions(),
        }
        return json.loads(json.dumps(told))


def collect(vlm: VLM, pictures: Sequence[Picture], setup: Setup, folder: Path | None = None) -> Iterator[Labelled]:
    """The labelled object words of each batch of images. Parts in `folder` are read instead of measured again."""
    if folder is not None:
        _check(folder, setup.record(vlm))
    source: Iterable[Picture] = iter(pictures)
    for number, start in enumerate(range(0, len(pictures), setup.batch)):
        some = list(islice(source, setup.batch))
        path = None if folder is None else folder / f"part-{number:05d}-{len(some)}.npz"
        if path is not None and path.is_file():
            yield _read(path)
            continue
        found = _described(vlm, some, setup, start)
        if path is not None:
            stream = io.BytesIO()
            np.savez(stream, **as_arrays(found))  # type: ignore[arg-type]
            atomic_write(path, stream.getvalue())
        yield found


def _described(vlm: VLM, pictures: Sequence[Picture], setup: Setup, first: int) -> Labelled:
    answers = vlm.generate(
        [picture.image for picture in pictures],
        [setup.prompt] * len(pictures),
        method=setup.method,
        trace=True,
        max_new_tokens=setup.max_new_tokens,
        do_sample=False,
    )
    find = finder(setup.words)
    numbered = enumerate(zip(pictures, answers, strict=True), first)
    return joined(
        [
            label(vlm.tokenizer, answer.token_ids, answer.trace, picture.objects, find, number)
            for number, (picture, answer) in numbered
        ]
    )


def stored(folder: Path) -> Labelled:
    """All parts in a folder."""
    parts = sorted(folder.glob("part-*.npz"))
    if not parts:
        raise DataError(f"{folder} has no measured features")
    return joined([_read(path) for path in parts])


def _check(folder: Path, record: dict[str, Any]) -> None:
    """Refuse parts of another model, of other images or options."""
    path = folder / SETUP
    if not path.is_file():
        os.makedirs(folder, exist_ok=True)
        atomic_write(path, json.dumps(record, indent=1) + "\n")
        return
    known = strict_json.read(path, DataError)
    if known != record:
        odd = next((name for name in record if known.get(name) != record[name]), "setup")
        raise DataError(
            f"{folder} has features that were measured with another {odd}: choose another folder, or delete it"
        )


def _read(path: Path) -> Labelled:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return from_arrays({name: stored[name] for name in stored.files})
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path} is not a part of measured features: delete it to measure it again") from error


def renumbered(labelled: Labelled, offset: int) -> Labelled:
    """With other numbers of images, to join it with words of other images."""
    return replace(labelled, picture=labelled.picture + offset)
