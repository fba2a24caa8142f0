"""CHAIR: objects that a caption names and the image does not have."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from heal.bench import synonyms
from heal.bench.images import Named, image_key
from heal.bench.records import need, read_json, read_records
from heal.bench.synonyms import Synonyms
from heal.bench.task import Number, Sample, Task, ratio, together
from heal.errors import ConfigError, DataError

PROMPT = "Please describe this image in detail."
COUNTS = ("captions", "hallucinated", "mentions", "wrong", "distinct", "hits", "truths", "words", "silent")
OBJECTS = ("coco2014_objects.json", "objects.json")
SOURCE = "the COCO 2014 annotations (instances_val2014.json and captions_val2014.json in a folder annotations)"


def read_caption(text: str, table: Synonyms, complete: bool = False) -> dict[str, Any]:
    """The categories that a caption names, in order, and its length in words."""
    words = table.words(complete_sentences(text) if complete else text)
    return {"mentions": table.mentions(words), "words": len(words)}


def complete_sentences(text: str) -> str:
    """Without what follows the last full stop: a caption cut at 64 tokens ends anywhere."""
    ends = [match.end() for match in re.finditer(r"[.!?][\"')]*(?=\s|$)", text)]
    return text[: ends[-1]] if ends else text


def caption_counts(truth: Iterable[str], parse: Mapping[str, Any]) -> dict[str, float]:
    """Of one caption against the objects of its image."""
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
    """Per cent, except the mean length in words and the number of captions that name no object."""
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
    """{image id: [category, …]}"""
    record = read_json(path, SOURCE)
    if not isinstance(record, dict) or not all(isinstance(v, list) for v in record.values()):
        raise DataError(f"{path} must be a JSON object {{image id: [category, …]}}")
    if not record:
        raise DataError(f"{path} has no images")
    found = {image_key(key): [str(name) for name in names] for key, names in record.items()}
    if len(found) < len(record):
        raise DataError(f"{path}: two keys mean the same image")
    return found


def truth_of(key: str, objects: Mapping[str, list[str]], table: Synonyms, where: str) -> list[str]:
    """The categories of one image in the names of the table. An unknown image is an error, never an empty truth."""
    if key not in objects:
        raise DataError(f"{where} has no ground truth for the image {key}")
    unknown = [name for name in objects[key] if name.lower() not in table.category]
    if unknown:
        raise DataError(f"{where}: the category {unknown[0]!r} of image {key} is not in the table of synonyms")
    return sorted({table.category[name.lower()] for name in objects[key]})


def objects_from_annotations(folder: Path, table: Synonyms, split: str = "val2014") -> dict[str, list[str]]:
    """Instance categories, and the objects named in the five reference captions."""
    instances = read_json(folder / f"instances_{split}.json", SOURCE)
    captions = read_json(folder / f"captions_{split}.json", SOURCE)
    names = {c["id"]: str(c["name"]) for c in need(instances, "categories", "the instances")}
    for name in names.values():
        if name not in table.category:
            raise DataError(f"the category {name!r} of the annotations is not in the table of synonyms")
    found: defaultdict[str, set[str]] = defaultdict(set)
    for image in need(captions, "images", "the captions"):
        found[image_key(image["id"])] = set()
    for note in need(instances, "annotations", "the instances"):
        found[image_key(note["image_id"])].add(table.category[names[note["category_id"]]])
    for note in need(captions, "annotations", "the captions"):
        found[image_key(note["image_id"])].update(table.mentions(table.words(note["caption"])))
    return {key: sorted(value) for key, value in found.items()}


# ── the task ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Chair(Task):
    """COCO images described at length."""

    name: ClassVar[str] = "chair"
    summary: ClassVar[str] = "CHAIR: objects that a long description of a COCO image makes up."
    max_new_tokens: ClassVar[int] = 512
    headline: ClassVar[str] = "chair_s"
    higher_is_better: ClassVar[bool] = False

    data: Path
    """A folder (or one with a folder `chair`) with objects.json or coco2014_objects.json, or COCO's annotations."""
    images: Path | None = None
    """The folder of the images; otherwise they are looked for in and beside the data folder."""
    table: Path | None = None
    """The official list of synonyms; otherwise synonyms.txt in the data folder, or the package's own table."""
    count: int = 500
    """How many images to draw if there is no image_ids.json."""
    seed: int = 0
    """Of that draw."""
    complete: bool = False
    """Drop the last incomplete sentence, as is usual with 64 new tokens."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"count must be 1 or more, not {self.count}")

    @property
    def folder(self) -> Path:
        return self.data / "chair" if (self.data / "chair").is_dir() else self.data

    @cached_property
    def synonyms(self) -> Synonyms:
        beside = self.folder / "synonyms.txt"
        return synonyms.load(self.table or (beside if beside.is_file() else None))

    @cached_property
    def objects(self) -> dict[str, list[str]]:
        for name in OBJECTS:
            if (self.folder / name).is_file():
                return read_objects(self.folder / name)
        for folder in (self.folder / "annotations", self.data / "annotations"):
            if folder.is_dir():
                return objects_from_annotations(folder, self.synonyms)
        raise DataError(f"{self.folder / OBJECTS[1]} is missing; it can also be made from {SOURCE}")

    def ids(self) -> list[str]:
        path = self.folder / "image_ids.json"
        if path.is_file():
            return [image_key(value) for value in read_json(path)]
        known = sorted(self.objects, key=lambda key: (len(key), key))
        rng = np.random.default_rng(self.seed)
        return [known[i] for i in sorted(rng.permutation(len(known))[: self.count])]

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        found = []
        for key in self.ids():
            truth = truth_of(key, self.objects, self.synonyms, str(self.folder))
            stem = f"{int(key):012d}.jpg" if key.isdigit() else key
            picture = Named(f"COCO_val2014_{stem}", self.data, self.images, (stem, f"COCO_train2014_{stem}"))
            found.append(Sample(key, key, PROMPT, {"objects": truth}, picture))
        return together(found, "CHAIR")

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return read_caption(text, self.synonyms, self.complete)

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return total_counts([s.truth["objects"] for s in samples], parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return chair_figures(totals)


# ── files made by other programs ──────────────────────────────────────────────────────────────────────────


def score_files(captions: Path, objects: Path, table: Path | None = None, complete: bool = False) -> dict[str, Any]:
    """Captions {"image_id", "caption"} against objects {image id: [category, …]}."""
    words, truths = synonyms.load(table), read_objects(objects)
    parses: dict[str, dict[str, Any]] = {}
    for number, record in enumerate(read_records(captions), 1):
        where = f"{captions}, record {number}"
        key, text = image_key(need(record, "image_id", where)), need(record, "caption", where)
        if key in parses:
            raise DataError(f"{captions}: the image {key} has two captions")
        if not isinstance(text, str):
            raise DataError(f"{where}: the caption is not a text")
        parses[key] = read_caption(text, words, complete)
    facts = [truth_of(key, truths, words, str(objects)) for key in parses]
    totals = total_counts(facts, list(parses.values()))
    found = {name: float(value) for name, value in chair_figures(totals).items()}
    return found | {"n": len(parses), "synonyms": "own" if table is None else table.name}
