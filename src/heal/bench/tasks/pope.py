"""POPE: "Is there a … in the image?" with random, popular and adversarial absent objects."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from heal.bench.tasks import yes_no
from heal.bench.tasks.base import Number, Sample, Task, grouped_by_unit
from heal.bench.tasks.data_files import as_id, need, need_id, need_image, need_text, read_records
from heal.bench.tasks.image_files import NamedImage, image_key
from heal.errors import ConfigError, DataError, HealWarning, shortened

Parser = Literal["official", "strict"]
PARSERS: tuple[str, ...] = get_args(Parser)
SPLITS = ("random", "popular", "adversarial")
STEMS = {"coco": ("coco_pope",), "aokvqa": ("aokvqa_pope_seem", "aokvqa_pope"), "gqa": ("gqa_pope_seem", "gqa_pope")}
SOURCE = "the GitHub repository AoiDragon/POPE, folder output"
TYPO = "imange"
CURRENT, OLD, WORDING, OTHER = "current (3000)", "old (2910)", "old wording (imange)", "other"


def official(text: str) -> yes_no.Verdict:
    """The official parser: `no` if No, no or not is a word before the first full stop, otherwise `yes`."""
    words = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "no", "not"} & set(words) else "yes"


def read(text: str, parser: str) -> dict[str, Any]:
    """The verdict of this parser, and whether the strict parser finds none."""
    certain = yes_no.strict(text)
    return {"answer": official(text) if parser == "official" else certain, "unparsable": certain is None}


def version(questions: Sequence[Mapping[str, Any]]) -> str:
    """The published version of these questions. Versions have different labels under the same ids."""
    if len(questions) == 2910:
        return OLD
    if any(TYPO in q["text"] for q in questions if isinstance(q.get("text"), str)):
        return WORDING
    return CURRENT if len(questions) == 3000 else OTHER


def one_version(files: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The version of all files. Mixing old and current files is refused."""
    found = {name: version(questions) for name, questions in files.items()}
    if {OLD, WORDING} & set(found.values()) and CURRENT in found.values():
        old = next(name for name, v in found.items() if v in (OLD, WORDING))
        new = next(name for name, v in found.items() if v == CURRENT)
        raise DataError(
            f"two versions of POPE are mixed: {old} is the {found[old]} one, {new} the {CURRENT} one, and the "
            f"same ids may have different labels. Use files of one version, from {SOURCE}"
        )
    alike = set(found.values())
    return OLD if OLD in alike else alike.pop() if len(alike) == 1 else OTHER


def label(question: Mapping[str, Any], where: str, key: str = "label") -> str:
    value = str(need(question, key, where)).strip().lower()
    if value not in ("yes", "no"):
        raise DataError(f"{where} has the {key} {shortened(value, 40)!r}: it must be yes or no")
    return value


def one_class(labels: Iterable[str], where: str) -> list[str]:
    """A warning if all questions have the same label, because a constant answer would then be perfect."""
    found = set(labels)
    if len(found) != 1:
        return []
    only = found.pop()
    text = (
        f"{where}: every question has the label {only}, so precision and f1 are undefined, and always saying {only}"
    )
    return [f"{text} would be right"]


# ── counting: shared with the miniature world ─────────────────────────────────────────────────────────────


def split_counts(
    splits: Sequence[str], samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Confusion counts of each split, as `split/tp` and so on. A question may belong to several splits."""
    found: dict[str, float] = {}
    for split in splits:
        pairs = [
            (s.truth["label"], p)
            for s, p in zip(samples, parses, strict=True)
            if split in s.truth.get("splits", splits)
        ]
        found |= {f"{split}/{key}": value for key, value in yes_no.confusion(pairs).items()}
    return found


def split_score(splits: Sequence[str], totals: Mapping[str, Number]) -> dict[str, Number]:
    """The mean over the splits, as in papers, then each split. Unparsable answers are summed."""
    each = {split: yes_no.figures(totals, f"{split}/") for split in splits}
    names = list(each[splits[0]])
    found: dict[str, Number] = {}
    for name in names:
        total = sum(np.asarray(each[split][name], dtype=float) for split in splits)
        found[name] = total if name == "unparsable" else total / len(splits)
    if len(splits) > 1:
        found |= {f"{split}/{name}": each[split][name] for split in splits for name in names}
    return found


def split_remarks(splits: Sequence[str], samples: Sequence[Sample]) -> list[str]:
    labels = {split: [s.truth["label"] for s in samples if split in s.truth["splits"]] for split in splits}
    empty = [
        f"{split}: no question is asked, so the mean over the splits is undefined"
        for split in splits
        if not labels[split]
    ]
    return empty + [remark for split in splits for remark in one_class(labels[split], split)]


# ── the task ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Pope(Task):
    """POPE from official files: `coco_pope_random.json` and so on, and the images."""

    name: ClassVar[str] = "pope"
    summary: ClassVar[str] = "POPE: is there a … in the image? Official files of COCO, A-OKVQA or GQA."
    max_new_tokens: ClassVar[int] = 10
    headline: ClassVar[str] = "f1"

    data: Path
    """The folder with the question files, or one with a subfolder `pope`."""
    variant: str = "coco"
    """coco, aokvqa or gqa."""
    splits: tuple[str, ...] = SPLITS
    """Any of random, popular, adversarial."""
    parser: str = "official"
    """official (no verdict counts as yes) or strict (no verdict counts as wrong)."""
    suffix: str = ""
    """Appended to every question, with the separator: '\\nAnswer the question using a single word or phrase.'"""
    images: Path | None = None
    """The image folder. Default: images are searched in and next to the data folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("parser", self.parser, PARSERS)
        check_choice("variant", self.variant, tuple(STEMS))
        check_splits(self.splits, SPLITS)

    @cached_property
    def files(self) -> dict[str, list[dict[str, Any]]]:
        paths = [question_file(self.data, self.variant, split) for split in self.splits]
        return {path.name: read_records(path, SOURCE) for path in paths}

    @property
    def version(self) -> str:
        return one_version(self.files)

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        one_version(self.files)
        found = []
        for split, (name, questions) in zip(self.splits, self.files.items(), strict=True):
            for number, q in enumerate(questions, 1):
                where = f"{name}, question {number}"
                image = need_image(q, "image", where)
                found.append(
                    Sample(
                        f"{split}/{need_id(q, 'question_id', where)}",
                        image,
                        need_text(q, "text", where) + self.suffix,
                        {"label": label(q, where), "splits": [split]},
                        NamedImage(image, self.data, self.images),
                    )
                )
        return grouped_by_unit(found, f"POPE ({self.variant})")

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def remarks(self, samples: Sequence[Sample]) -> list[str]:
        return split_remarks(self.splits, samples)

    def parse(self, sample: Sample, text: str) -> dict[str, Any]:
        return read(text, self.parser)

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return split_counts(self.splits, samples, parses)

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        return split_score(self.splits, totals)


def question_file(data: Path, variant: str, split: str) -> Path:
    """The question file, in the folder or in the layouts of public repositories, or else the expected path."""
    folders = [data / name for name in ("", "pope", "POPE", variant, f"pope/{variant}", f"POPE/{variant}")]
    places = [folder / f"{stem}_{split}.json" for folder in folders for stem in STEMS[variant]]
    return next((place for place in places if place.is_file()), places[0])


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} cannot be {shortened(value)!r}: choose one of {', '.join(choices)}")


def check_splits(splits: Sequence[str], known: Sequence[str]) -> None:
    if not splits:
        raise ConfigError(f"no split is chosen: choose from {', '.join(known)}")
    for split in splits:
        check_choice("split", split, known)
    if len(set(splits)) < len(splits):
        raise ConfigError(f"a split is chosen twice: {', '.join(splits)}")


# ── files made by other programs ──────────────────────────────────────────────────────────────────────────


def score_files(answers: Path, questions: Path, parser: str = "official") -> dict[str, Any]:
    """Score answers against questions, matched by id and never by line order."""
    check_choice("parser", parser, PARSERS)
    asked, given = read_records(questions, SOURCE), _by_id(read_records(answers), answers)
    truths = _by_id(asked, questions)
    missing, extra = [i for i in truths if i not in given], [i for i in given if i not in truths]
    if missing or extra:
        what = f"no answer to question {missing[0]}" if missing else f"an answer to {extra[0]}, which was not asked"
        raise DataError(
            f"{answers} does not match {questions}: {len(missing)} answers are missing and {len(extra)} have no "
            f"question ({what}). POPE exists in two versions; the questions are the {version(asked)} one"
        )
    _same_questions(truths, given, answers)
    pairs = [
        (label(q, f"{questions}, question {i}"), read(_text(given[i], f"{answers}, question {i}"), parser))
        for i, q in truths.items()
    ]
    for remark in one_class((truth for truth, _ in pairs), str(questions)):
        warnings.warn(remark, HealWarning, stacklevel=2)
    found = {name: float(value) for name, value in yes_no.figures(yes_no.confusion(pairs)).items()}
    return found | {"n": len(pairs), "parser": parser, "version": version(asked)}


def _by_id(records: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for number, record in enumerate(records, 1):
        key = need_id(record, "question_id", f"{path}, record {number}")
        if key in found:
            raise DataError(f"{path}: the question_id {shortened(key)} occurs twice")
        found[key] = record
    return found


def _same_questions(
    truths: Mapping[str, Mapping[str, Any]], given: Mapping[str, Mapping[str, Any]], answers: Path
) -> None:
    """Check repeated questions: a different text under the same id indicates a different version of POPE."""
    for key, question in truths.items():
        record, where = given[key], f"{answers}, question {key}"
        text = need_text(question, "text", f"question {key}").strip() if "text" in question else ""
        about = need_image(question, "image", f"question {key}") if "image" in question else None
        asked = next((record[field] for field in ("question", "prompt") if isinstance(record.get(field), str)), None)
        image = None if record.get("image") is None else as_id(record["image"], f"{where}: `image`")
        other = asked is not None and text.lower() not in asked.lower()
        if other or (image is not None and about is not None and image_key(image) != image_key(about)):
            said = shortened(repr(asked or image))
            raise DataError(
                f"{where} was {said}, but the questions say {shortened(text)!r} about {about}. The answers were made "
                "with another version of POPE"
            )


def _text(record: Mapping[str, Any], where: str) -> str:
    # in files that repeat the question, `text` is the question
    value = record.get("answer", record.get("text"))
    if not isinstance(value, str):
        raise DataError(f"{where} has no answer in `text` or `answer`")
    return value
