"""CHAIR: objects that a caption mentions but the image does not contain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from heal.bench.tasks import nltk_lemmas, synonyms
from heal.bench.tasks.base import Number, Sample, Task, grouped_by_unit, ratio
from heal.bench.tasks.data_files import (
    as_id,
    image_name,
    need,
    need_id,
    need_list,
    need_text,
    read_json,
    read_object,
    read_records,
)
from heal.bench.tasks.image_files import NamedImage, image_key
from heal.bench.tasks.pope import check_choice
from heal.bench.tasks.synonyms import LEMMATIZERS, Synonyms
from heal.errors import ConfigError, DataError, shortened

PROMPT = "Please describe this image in detail."
COUNTS = ("captions", "hallucinated", "mentions", "wrong", "distinct", "hits", "truths", "words", "silent")
OBJECTS = ("coco2014_objects.json", "objects.json")
SOURCE = "the COCO 2014 annotations (instances_val2014.json and captions_val2014.json in a folder annotations)"


def read_caption(text: str, table: Synonyms, complete: bool = False) -> dict[str, Any]:
    """Parse the mentioned categories, in order, and the length in words."""
    words = table.words(complete_sentences(text) if complete else text)
    return {"mentions": table.mentions(words), "words": len(words)}


def sentence_ends(text: str) -> list[int]:
    return [match.end() for match in re.finditer(r"[.!?][\"')]*(?=\s|$)", text)]


def complete_sentences(text: str) -> str:
    """Drop the text after the last full stop, because a caption cut at 64 tokens is incomplete."""
    ends = sentence_ends(text)
    return text[: ends[-1]] if ends else text


def sentence_cuts(text: str) -> list[str]:
    """The text after 1, 2, … sentences. The last one is the whole text, also if its last sentence is incomplete."""
    cuts = [text[:end] for end in sentence_ends(text)]
    return cuts if cuts and not text[len(cuts[-1]) :].strip() else [*cuts, text]


def caption_counts(truth: Iterable[str], parse: Mapping[str, Any]) -> dict[str, float]:
    """Counts of one caption against the objects of its image."""
    objects, mentions = set(truth), list(parse["mentions"])
    wrong = sum(name not in objects for name in mentions)
    values = (1, wrong > 0, len(mentions), wrong, len(set(mentions)), len(objects & set(mentions)), len(objects))
    return dict(zip(COUNTS, map(float, (*values, parse["words"], not mentions)), strict=True))


def total_counts(truths: Sequence[Iterable[str]], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found = dict.fromkeys(COUNTS, 0.0)
    for truth, parse in zip(truths, parses, strict=True):
        for key, value in caption_counts(truth, parse).items():
            found[key] += value
    return found


def chair_figures(totals: Mapping[str, Number]) -> dict[str, Number]:
    """Percentages, the mean length in words, and the number of captions without any object."""
    t = totals
    return {
        "chair_s": ratio(t["hallucinated"], t["captions"], 100),
        "chair_i": ratio(t["wrong"], t["mentions"], 100),
        "recall": ratio(t["hits"], t["truths"], 100),
        "precision": ratio(t["hits"], t["distinct"], 100),
        "f1": ratio(2 * t["hits"], t["distinct"] + t["truths"], 100),
        "len": ratio(t["words"], t["captions"]),
        "without_objects": t["silent"],
    }


# ── ground truth ──────────────────────────────────────────────────────────────────────────────────────────


def read_objects(path: Path) -> dict[str, list[str]]:
    """Read {image id: [category, …]}."""
    record = read_json(path, SOURCE)
    lists = isinstance(record, dict) and all(isinstance(names, list) for names in record.values())
    if not lists or not all(isinstance(name, str) for names in record.values() for name in names):
        raise DataError(f"{path} must be a JSON object {{image id: [category, …]}}")
    if not record:
        raise DataError(f"{path} has no images")
    found = {image_key(as_id(key, f"{path}: an image id")): names for key, names in record.items()}
    if len(found) < len(record):
        raise DataError(f"{path}: two keys mean the same image")
    return found


def truth_of(key: str, objects: Mapping[str, list[str]], table: Synonyms, where: str) -> list[str]:
    """The categories of one image under the names of the table. An unknown image is an error, never an empty set."""
    if key not in objects:
        raise DataError(f"{where} has no ground truth for the image {shortened(key)}")
    unknown = [name for name in objects[key] if name.lower() not in table.category]
    if unknown:
        raise DataError(
            f"{where}: the category {shortened(unknown[0])!r} of image {key} is not in the table of synonyms"
        )
    return sorted({table.category[name.lower()] for name in objects[key]})


def objects_from_annotations(folder: Path, table: Synonyms, split: str = "val2014") -> dict[str, list[str]]:
    """Combine instance categories with the objects mentioned in the five reference captions."""
    things, words = folder / f"instances_{split}.json", folder / f"captions_{split}.json"
    instances, captions = read_object(things, SOURCE), read_object(words, SOURCE)
    names: dict[str, str] = {}
    for where, category in _numbered(instances, "categories", things):
        key, name = need_id(category, "id", where), need_text(category, "name", where)
        if name not in table.category:
            raise DataError(f"{where}: the category {shortened(name)!r} is not in the table of synonyms")
        if names.setdefault(key, table.category[name]) != table.category[name]:
            raise DataError(f"{where}: two categories have the id {key}")
    found: dict[str, set[str]] = {}
    for where, image in _numbered(captions, "images", words):
        found[image_key(need_id(image, "id", where))] = set()
    for where, note in _numbered(instances, "annotations", things):
        kind = need_id(note, "category_id", where)
        if kind not in names:
            raise DataError(f"{where}: no category has the id {shortened(kind)}")
        _of_image(found, note, where, words).add(names[kind])
    for where, note in _numbered(captions, "annotations", words):
        text = need(note, "caption", where)
        if not isinstance(text, str):
            raise DataError(f"{where}: the caption is not a string")
        _of_image(found, note, where, words).update(table.mentions(table.words(text)))
    return {key: sorted(value) for key, value in found.items()}


def _numbered(record: Mapping[str, Any], key: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a list with their locations for error messages."""
    for number, item in enumerate(need_list(record, key, str(path)), 1):
        where = f"{path}, {key} {number}"
        if not isinstance(item, dict):
            raise DataError(f"{where} is not an object")
        yield where, item


def _of_image(found: Mapping[str, set[str]], note: Mapping[str, Any], where: str, captions: Path) -> set[str]:
    key = image_key(need_id(note, "image_id", where))
    if key not in found:
        raise DataError(
            f"{where}: {captions.name} does not list the image {shortened(key)}: use files of the same split"
        )
    return found[key]


# ── the task ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Chair(Task):
    """CHAIR on long descriptions of COCO images."""

    name: ClassVar[str] = "chair"
    summary: ClassVar[str] = "CHAIR: objects hallucinated in long descriptions of COCO images."
    max_new_tokens: ClassVar[int] = 512
    headline: ClassVar[str] = "chair_s"
    higher_is_better: ClassVar[bool] = False

    data: Path
    """A folder with objects.json, coco2014_objects.json or COCO annotations, or one with a subfolder `chair`."""
    images: Path | None = None
    """The image folder. Default: images are searched in and next to the data folder."""
    table: Path | None = None
    """The official list of synonyms. Default: synonyms.txt in the data folder, or the table of this package."""
    count: int = 500
    """Number of images to sample if there is no image_ids.json."""
    seed: int = 0
    """Seed for sampling the images."""
    complete: bool = False
    """Drop the last incomplete sentence, as is common with 64 new tokens."""
    lemmatizer: str = "rules"
    """rules (needs no data) or nltk (POS tags and WordNet, as published figures; needs NLTK and its data)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 1:
            raise ConfigError(f"count must be 1 or more, not {self.count}")
        beside = self.folder / "synonyms.txt"
        if self.table is None and beside.is_file():
            # stored in run.json as an option, so that rescoring uses the same table
            object.__setattr__(self, "table", beside)
        check_choice("lemmatizer", self.lemmatizer, LEMMATIZERS)
        if self.lemmatizer == "nltk":
            nltk_lemmas.version()  # fail before answers are generated, not after

    @property
    def folder(self) -> Path:
        return self.data / "chair" if (self.data / "chair").is_dir() else self.data

    @cached_property
    def synonyms(self) -> Synonyms:
        return synonyms.load(self.table, self.lemmatizer)

    @cached_property
    def objects(self) -> dict[str, list[str]]:
        for name in OBJECTS:
            if (self.folder / name).is_file():
                return read_objects(self.folder / name)
        for folder in (self.folder / "annotations", self.data / "annotations"):
            if folder.is_dir():
                return objects_from_annotations(folder, self.synonyms)
        raise DataError(f"{self.folder / OBJECTS[1]} is missing; it can also be derived from {SOURCE}")

    def ids(self) -> list[str]:
        path = self.folder / "image_ids.json"
        if path.is_file():
            listed = read_json(path)
            if not isinstance(listed, list) or not listed:
                raise DataError(f"{path} must be a JSON list of image ids: [42, 73, …]")
            return [image_key(as_id(value, f"{path}: id {number}")) for number, value in enumerate(listed, 1)]
        known = sorted(self.objects, key=lambda key: (len(key), key))
        rng = np.random.default_rng(self.seed)
        return [known[i] for i in sorted(rng.permutation(len(known))[: self.count])]

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        found = []
        for key in self.ids():
            truth = truth_of(key, self.objects, self.synonyms, str(self.folder))
            number = key.isascii() and key.isdigit()
            stem = f"{int(key):012d}.jpg" if number else image_name(key, f"{self.folder}: an image id")
            image = NamedImage(f"COCO_val2014_{stem}", self.data, self.images, (stem, f"COCO_train2014_{stem}"))
            found.append(Sample(key, key, PROMPT, {"objects": truth}, image))
        return grouped_by_unit(found, "CHAIR")

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return read_caption(text, self.synonyms, self.complete)

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return total_counts([s.truth["objects"] for s in samples], parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return chair_figures(totals)

    def cuts(self, text: str) -> list[str]:
        return sentence_cuts(text)

    def note(self, parses: Iterable[Mapping[str, Any]]) -> str:
        names = "own" if self.table is None else self.table.name
        return f"lemmatizer {self.synonyms.lemmas}, synonyms {names}"


# ── files made by other programs ──────────────────────────────────────────────────────────────────────────


def score_files(
    captions: Path, objects: Path, table: Path | None = None, complete: bool = False, lemmatizer: str = "rules"
) -> dict[str, Any]:
    """Score captions {"image_id", "caption"} against objects {image id: [category, …]}."""
    words, truths = synonyms.load(table, lemmatizer), read_objects(objects)
    parses: dict[str, dict[str, Any]] = {}
    for number, record in enumerate(read_records(captions), 1):
        where = f"{captions}, record {number}"
        key, text = image_key(need_id(record, "image_id", where)), need(record, "caption", where)
        if key in parses:
            raise DataError(f"{captions}: the image {shortened(key)} has two captions")
        if not isinstance(text, str):
            raise DataError(f"{where}: the caption is not a string")
        parses[key] = read_caption(text, words, complete)
    facts = [truth_of(key, truths, words, str(objects)) for key in parses]
    totals = total_counts(facts, list(parses.values()))
    found = {name: float(value) for name, value in chair_figures(totals).items()}
    names = "own" if table is None else table.name
    return found | {"n": len(parses), "synonyms": names, "lemmatizer": words.lemmas}
