"""BLINK-Twice: two questions per image, and a twin image for which the answer is reversed.

The manifest is `blink_twice.jsonl`, one question per line:

    {"group": "17", "image": "17.jpg", "twin": false, "question": "Is …?", "answer": "no"}

`group` is shared by an image and its twin, `twin` tells them apart, `answer` is yes or no. `id` is optional.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from heal.bench.tasks import yes_no
from heal.bench.tasks.base import Number, Sample, Task, grouped_by_unit, ratio
from heal.bench.tasks.data_files import UniqueKeys, kind, need, need_id, need_image, need_text, read_records
from heal.bench.tasks.image_files import NamedImage
from heal.bench.tasks.pope import label
from heal.errors import DataError

MANIFEST = "blink_twice.jsonl"
SOURCE = "the authors of BLINK-Twice; write the manifest from their files (docs/benchmarks.md says how)"
COUNTS = ("no", "no_right", "yes", "yes_right", "images", "images_right", "groups", "groups_right", "unparsable")


@dataclass(frozen=True)
class BlinkTwice(Task):
    """BLINK-Twice from the official images and a manifest."""

    name: ClassVar[str] = "blink-twice"
    summary: ClassVar[str] = "BLINK-Twice: paired questions about images and their twins."
    max_new_tokens: ClassVar[int] = 10
    headline: ClassVar[str] = "q_acc"

    data: Path
    """The folder with blink_twice.jsonl and the images, or one with a subfolder `blink_twice`."""
    suffix: str = ""
    """Appended to every question, including the separator."""
    images: Path | None = None
    """The folder of the images."""

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        folder = self.data / "blink_twice" if (self.data / "blink_twice").is_dir() else self.data
        records = read_records(folder / MANIFEST, SOURCE)
        lines = [_line(q, f"{MANIFEST}, line {number}") for number, q in enumerate(records, 1)]
        _check(lines)
        asked, joined = Counter(image for _, image, _ in lines), Counter(group for group, _, _ in lines)
        found, numbers, once = [], dict[str, int](), UniqueKeys(MANIFEST)
        for line, (q, (group, image, twin)) in enumerate(zip(records, lines, strict=True), 1):
            where = f"{MANIFEST}, line {line}"
            question, answer = need_text(q, "question", where), label(q, where, "answer")
            once.check((image, question), f"the question {question!r} about {image}", line)
            number = numbers[image] = numbers.get(image, -1) + 1
            truth = {
                "label": answer,
                "image": image,
                "twin": twin,
                "of_image": asked[image],
                "of_group": joined[group],
            }
            name = need_id(q, "id", where) if "id" in q else f"{image}/{number}"
            found.append(Sample(name, group, question + self.suffix, truth, NamedImage(image, folder, self.images)))
        return grouped_by_unit(found, "BLINK-Twice")

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        answer = yes_no.strict(text)
        return {"answer": answer, "unparsable": answer is None}

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """A unit is a group. Images and groups with an unanswered question are skipped. Only groups with a twin
        count as groups."""
        found = dict.fromkeys(COUNTS, 0.0)
        images: dict[str, list[bool]] = {}
        sizes: dict[str, int] = {}
        for sample, parse in zip(samples, parses, strict=True):
            truth = sample.truth
            right = parse["answer"] == truth["label"]
            found[truth["label"]] += 1
            found[f"{truth['label']}_right"] += right
            found["unparsable"] += bool(parse["unparsable"])
            images.setdefault(truth["image"], []).append(right)
            sizes[truth["image"]] = truth["of_image"]
        good = [all(rights) for image, rights in images.items() if len(rights) == sizes[image]]
        found["images"], found["images_right"] = float(len(good)), float(sum(good))
        whole = bool(samples) and len(samples) == samples[0].truth["of_group"]
        if whole and {bool(s.truth["twin"]) for s in samples} == {True, False}:
            found["groups"], found["groups_right"] = 1.0, float(all(good))
        return found

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        t = totals
        return {
            "q_acc": ratio(t["no_right"] + t["yes_right"], t["no"] + t["yes"], 100),
            "no_acc": ratio(t["no_right"], t["no"], 100),
            "yes_acc": ratio(t["yes_right"], t["yes"], 100),
            "i_acc": ratio(t["images_right"], t["images"], 100),
            "g_acc": ratio(t["groups_right"], t["groups"], 100),
            "unparsable": t["unparsable"],
        }


def _line(q: Mapping[str, Any], where: str) -> tuple[str, str, bool]:
    """Group, image name, and whether the image is the twin."""
    twin = need(q, "twin", where)
    if not isinstance(twin, bool):
        raise DataError(f"{where}: `twin` must be true or false, not {kind(twin)}")
    return need_id(q, "group", where), need_image(q, "image", where), twin


def _check(lines: Sequence[tuple[str, str, bool]]) -> None:
    """Check that each image belongs to one group and is either the twin or not."""
    seen: dict[str, tuple[str, bool]] = {}
    for number, (group, image, twin) in enumerate(lines, 1):
        if seen.setdefault(image, (group, twin)) != (group, twin):
            now, before = (f"group {g}, twin {str(t).lower()}" for g, t in ((group, twin), seen[image]))
            raise DataError(f"{MANIFEST}, line {number}: {image} is in {now}, but before it was in {before}")
