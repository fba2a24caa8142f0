"""MME: two questions per image, one with the answer yes and one with no."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from heal.bench.tasks import yes_no
from heal.bench.tasks.base import File, ImageSource, Number, Sample, Task, grouped_by_unit, ratio
from heal.bench.tasks.data_files import image_name, read_text
from heal.bench.tasks.image_files import NamedImage
from heal.bench.tasks.pope import PARSERS, check_choice, check_splits
from heal.errors import DataError, shortened

HALLUCINATION = ("existence", "count", "position", "color")
PERCEPTION = (*HALLUCINATION, "posters", "celebrity", "scene", "landmark", "artwork", "OCR")
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
SUBTASKS = (*PERCEPTION, *COGNITION)
SOURCE = "the MME evaluation tool and data of the GitHub repository BradyFU/Awesome-Multimodal-Large-Language-Models"
GROUPS = {"hallucination": HALLUCINATION, "perception": PERCEPTION, "cognition": COGNITION}
COUNTS = ("questions", "right", "images", "both", "unparsable")


def official(text: str) -> yes_no.Verdict | None:
    """The official parser: yes or no in lower case, otherwise whichever occurs in the first four characters."""
    answer = text.lower()
    if answer in ("yes", "no"):
        return "yes" if answer == "yes" else "no"
    return "yes" if "yes" in answer[:4] else "no" if "no" in answer[:4] else None


def read(text: str, parser: str) -> dict[str, Any]:
    """The verdict, and whether this parser found none."""
    answer = official(text) if parser == "official" else yes_no.strict(text)
    return {"answer": answer, "unparsable": answer is None}


# ── counting: shared with the miniature world ─────────────────────────────────────────────────────────────


def pair_counts(
    subtasks: Sequence[str], truths: Sequence[Mapping[str, Any]], parses: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Counts per subtask; truths have subtask, label and pair. Pairs with an unanswered question are skipped."""
    found = {f"{subtask}/{key}": 0.0 for subtask in subtasks for key in COUNTS}
    pairs: dict[tuple[str, Any], list[bool]] = {}
    for truth, parse in zip(truths, parses, strict=True):
        subtask, right = truth["subtask"], parse["answer"] == truth["label"]
        found[f"{subtask}/questions"] += 1
        found[f"{subtask}/right"] += right
        found[f"{subtask}/unparsable"] += bool(parse["unparsable"])
        pairs.setdefault((subtask, truth["pair"]), []).append(right)
    for (subtask, _), rights in pairs.items():
        if len(rights) == 2:  # incomplete pairs, caused by a limit or a failure, cannot be scored
            found[f"{subtask}/images"] += 1
            found[f"{subtask}/both"] += all(rights)
    return found


def pair_score(subtasks: Sequence[str], totals: Mapping[str, Number]) -> dict[str, Number]:
    """Scores of the subtasks (accuracy + pair accuracy, at most 200) and the sums of their groups."""
    found: dict[str, Number] = {}
    scores: dict[str, Number] = {}
    for subtask in subtasks:
        questions, right, images, both, _ = (totals[f"{subtask}/{key}"] for key in COUNTS)
        accuracy, plus = ratio(right, questions, 100), ratio(both, images, 100)
        scores[subtask] = np.asarray(accuracy) + plus
        found |= {
            f"{subtask}/accuracy": accuracy,
            f"{subtask}/accuracy_plus": plus,
            f"{subtask}/score": scores[subtask],
        }
    head: dict[str, Number] = {}
    for group, members in GROUPS.items():
        # a sum over some of its subtasks would look like a bad result
        if set(members) <= set(subtasks):
            head[group] = _sum(scores[m] for m in members)
    head["total"] = _sum(scores.values())
    head["unparsable"] = _sum(totals[f"{s}/unparsable"] for s in subtasks)
    return head | found


def _sum(values: Iterable[Number]) -> Number:
    return sum((np.asarray(value, dtype=float) for value in values), np.zeros(()))


# ── the task ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Mme(Task):
    """MME from official data: one folder per subtask with images and texts, or one text file per subtask."""

    name: ClassVar[str] = "mme"
    summary: ClassVar[str] = "MME: 14 subtasks of paired yes/no questions, with the hallucination subset."
    max_new_tokens: ClassVar[int] = 10
    headline: ClassVar[str] = "total"

    data: Path
    """The folder with the subtasks (existence/… or existence.txt, …), or one with a subfolder `mme`."""
    subtasks: tuple[str, ...] = HALLUCINATION
    """Any of the 14 subtasks, or `all`. Default: the hallucination subset."""
    parser: str = "official"
    """official (reads four characters) or strict (reads words)."""
    images: Path | None = None
    """The image folder, if images are not in the folders of the subtasks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("parser", self.parser, PARSERS)
        check_splits(self.chosen, SUBTASKS)

    @property
    def chosen(self) -> tuple[str, ...]:
        return SUBTASKS if self.subtasks == ("all",) else self.subtasks

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        folder = self.data / "mme" if (self.data / "mme").is_dir() else self.data
        each = [_subtask(folder, name, self.data, self.images) for name in self.chosen]
        # interleaved, so that the first N samples cover every subtask
        return grouped_by_unit([s for turn in zip_longest(*each) for s in turn if s is not None], "MME")

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return read(text, self.parser)

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return pair_counts(self.chosen, [s.truth for s in samples], parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return pair_score(self.chosen, totals)


def _subtask(folder: Path, name: str, data: Path, images: Path | None) -> list[Sample]:
    text = folder / f"{name}.txt"
    if text.is_file():
        rows = table(text, 3)
        _twice(rows, text)
        for number, row in enumerate(rows, 1):
            image_name(row[0], f"{text}, line {number}")
        sources: list[ImageSource] = [NamedImage(row[0], data, images or _near(folder, name)) for row in rows]
    else:
        rows, sources = _folder(folder / name)
        _twice(rows, folder / name)
    found, asked = [], Counter[int]()
    for pair, (number, row) in zip(_pairs(rows, name), enumerate(rows), strict=True):
        image, question, answer = row[:3]
        truth = {"label": _label(answer, f"{name}, {shortened(image)}"), "subtask": name, "pair": pair}
        # names like 0001.png are reused across subtasks; COCO images occur in several subtasks
        unit = image if re.fullmatch(r"\d{12}\.jpg", image) else f"{name}/{image}"
        found.append(Sample(f"{name}/{pair}/{asked[pair]}", unit, question, truth, sources[number]))
        asked[pair] += 1
    return found


def _near(folder: Path, name: str) -> Path | None:
    return next((place for place in (folder / name / "images", folder / name) if place.is_dir()), None)


def _folder(folder: Path) -> tuple[list[list[str]], list[ImageSource]]:
    """Images with a text file of two questions each, side by side or in images/ and questions_answers_YN/."""
    texts, image_folder = folder / "questions_answers_YN", folder / "images"
    if not texts.is_dir():
        texts = image_folder = folder
    if not texts.is_dir():
        raise DataError(f"{folder} and {folder}.txt are missing; they come from {SOURCE}")
    rows: list[list[str]] = []
    sources: list[ImageSource] = []
    for text in sorted(texts.glob("*.txt")):
        places = [image_folder / (text.stem + end) for end in (".jpg", ".png", ".jpeg")]
        image = next((place for place in places if place.is_file()), places[0])
        for row in table(text, 2):
            rows.append([image.name, *row])
            sources.append(File(image))
    if not rows:
        raise DataError(f"{texts} has no questions; they come from {SOURCE}")
    return rows, sources


def table(path: Path, columns: int) -> list[list[str]]:
    """Read tab-separated rows with this number of columns."""
    rows = [line.split("\t") for line in read_text(path, SOURCE).split("\n") if line.strip()]
    if not rows:
        raise DataError(f"{path} is empty")
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            raise DataError(f"{path}, line {number} has {len(row)} columns instead of {columns}, separated by tabs")
    return rows


def _pairs(rows: Sequence[Sequence[str]], name: str) -> Iterable[int]:
    """Pair numbers of the rows: two rows of one image form a pair, in the order of the file."""
    seen: dict[str, int] = {}
    numbers: list[int] = []
    opened: dict[str, int] = {}
    count = 0
    for row in rows:
        image = row[0]
        if image in opened:
            numbers.append(opened.pop(image))
        else:
            opened[image] = count
            numbers.append(count)
            count += 1
        seen[image] = seen.get(image, 0) + 1
    if opened:
        image = next(iter(opened))
        raise DataError(f"{name}: the image {shortened(image)} has {seen[image]} questions; MME has two per image")
    return numbers


def _label(text: str, where: str) -> str:
    answer = text.strip().lower().rstrip(".")
    if answer not in ("yes", "no"):
        raise DataError(f"{where}: the truth is {shortened(text)!r}; it must be Yes or No")
    return answer


# ── files made by other programs ──────────────────────────────────────────────────────────────────────────


def score_files(folder: Path, parser: str = "official") -> dict[str, Any]:
    """Score the official results format: one text file per subtask, with image, question, truth and response."""
    check_choice("parser", parser, PARSERS)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder with one .txt file per subtask")
    names = [name for name in SUBTASKS if (folder / f"{name}.txt").is_file()]
    if not names:
        raise DataError(
            f"{folder} has none of {', '.join(f'{n}.txt' for n in HALLUCINATION)} … ({len(SUBTASKS)} in all)"
        )
    totals = dict.fromkeys((f"{name}/{key}" for name in names for key in COUNTS), 0.0)
    for name in names:
        rows = table(folder / f"{name}.txt", 4)
        _twice(rows, folder / f"{name}.txt")
        truths = [
            {"label": _label(row[2], f"{name}.txt, {shortened(row[0])}"), "subtask": name, "pair": pair}
            for row, pair in zip(rows, _pairs(rows, f"{name}.txt"), strict=True)
        ]
        totals |= pair_counts([name], truths, [read(row[3].strip("\r"), parser) for row in rows])
    found = {name: float(value) for name, value in pair_score(names, totals).items()}
    others = sorted(path.name for path in folder.glob("*.txt") if path.stem not in SUBTASKS)
    number = int(sum(totals[f"{name}/questions"] for name in names))
    return found | {"subtasks": names, "ignored": others, "parser": parser, "n": number}


def _twice(rows: Sequence[Sequence[str]], path: Path) -> None:
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if (row[0], row[1]) in seen:
            raise DataError(f"{path}: the question {shortened(row[1])!r} about {shortened(row[0])} occurs twice")
        seen.add((row[0], row[1]))
