"""MMHal-Bench: 96 open questions of eight types, answers rated 0 to 6 by a judge that sees no image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from heal.bench.tasks.base import Number, Sample, grouped_by_unit, ratio
from heal.bench.tasks.data_files import (
    UniqueKeys,
    image_name,
    need_id,
    need_text,
    need_texts,
    read_records,
    read_text,
)
from heal.bench.tasks.image_files import NamedImage
from heal.bench.tasks.judged import JudgedTask, Prompt
from heal.bench.tasks.pope import PARSERS, check_choice
from heal.errors import DataError, shortened

TYPES = (
    "attribute", "adversarial", "comparison", "counting", "relation", "environment", "holistic", "other",
)  # fmt: skip
SOURCE = "the data set Shengcao1006/MMHal-Bench"
WORST = 3  # lower ratings count as hallucinations
POSSIBLE = frozenset("0123456")
COUNTS = ("rated", "sum", "hallucinated")


def ratings(reply: str) -> set[str]:
    """All numbers that follow `rating: `."""
    found = re.findall(r"rating: ([-+]?(?:\d+(?:\.\d+)?(?:e\d+)?|nan\b|inf))", reply.lower())
    return {re.sub(r"\.0+$", "", number) for number in found}


def rating(reply: str) -> int | None:
    """The official parser: a rating if exactly one of `rating: 0` to `rating: 6` occurs, otherwise None."""
    found = ratings(reply)
    return int(found.pop()) if len(found) == 1 and found < POSSIBLE else None


@dataclass(frozen=True)
class MmHal(JudgedTask):
    """MMHal-Bench from official data: response_template.json, the judge's template and the images."""

    name: ClassVar[str] = "mmhal"
    summary: ClassVar[str] = "MMHal-Bench: open questions, rated by a judge."
    max_new_tokens: ClassVar[int] = 512
    headline: ClassVar[str] = "score"

    data: Path
    """The folder with response_template.json, judge_template.txt and images, or one with a subfolder `mmhal`."""
    parser: str = "official"
    """official (a reply without a clear rating counts as 0) or strict (it is skipped); both report how many."""
    images: Path | None = None
    """The folder of the images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("parser", self.parser, PARSERS)

    @property
    def folder(self) -> Path:
        return self.data / "mmhal" if (self.data / "mmhal").is_dir() else self.data

    @cached_property
    def template(self) -> list[str]:
        path = self.folder / "judge_template.txt"
        parts = read_text(path, f"{SOURCE}, where it is the `template` in eval_gpt4.py").split("{}")
        if len(parts) != 5:
            raise DataError(
                f"{path} must have four placeholders {{}}: image contents, question, reference and response"
            )
        return parts

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        path = self.folder / "response_template.json"
        found, once = [], UniqueKeys(str(path))
        for number, item in enumerate(read_records(path, SOURCE)):
            where = f"{path}, item {number + 1}"
            kind = need_text(item, "question_type", where)
            if kind not in TYPES:
                raise DataError(f"{where} has the type {shortened(kind)!r}: it must be one of {', '.join(TYPES)}")
            key = image_name(need_id(item, "image_id", where), f"{where}: `image_id`")
            question = need_text(item, "question", where)
            once.check((key, question), f"the question {question!r} about {key}", number + 1)
            truth = {
                "type": kind,
                "contents": need_texts(item, "image_content", where),
                "question": question,
                "answer": need_text(item, "gt_answer", where),
            }
            source = need_text(item, "image_src", where).rpartition("/")[2] if item.get("image_src") else ""
            names = (image_name(source or f"{key}.jpg", f"{where}: `image_src`"), f"{key}.jpg", f"{key}.png")
            image = NamedImage(names[0], self.folder, self.images, names[1:])
            found.append(Sample(f"{number}", f"{number}", question, truth, image))
        return grouped_by_unit(found, "MMHal-Bench")

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def judge_prompt(self, sample: Sample, text: str) -> Prompt:
        facts = sample.truth
        values = (", ".join(facts["contents"]), facts["question"], facts["answer"], text)
        filled = "".join(part + value for part, value in zip(self.template, (*values, ""), strict=True))
        return Prompt("", filled)

    def read_reply(self, sample: Sample, reply: str) -> dict[str, Any]:
        found, all_found = rating(reply), ratings(reply)
        if all_found - POSSIBLE:  # the official script would read `rating: 10` as 1
            return self.unjudged() | {"why": "rating that is not 0 to 6", "reply": reply}
        why = "" if found is not None else "reply with several ratings" if all_found else "reply without a rating"
        return {"rating": found, "unparsable": found is None, "unjudged": False, "why": why, "reply": reply}

    @property
    def unclear(self) -> str:
        official = self.parser == "official"
        return "without a clear rating and rated 0, as in the official script" if official else super().unclear

    def counted(self, parse: Mapping[str, Any]) -> bool:
        return super().counted(parse) or bool(parse["unparsable"] and self.parser == "official")

    def unjudged(self) -> dict[str, Any]:
        return {"rating": None, "unparsable": False, "unjudged": True}

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        found = {f"{kind}/{key}": 0.0 for kind in TYPES for key in COUNTS} | {"unparsable": 0.0, "unjudged": 0.0}
        for sample, parse in zip(samples, parses, strict=True):
            found["unparsable"] += bool(parse["unparsable"])
            found["unjudged"] += bool(parse["unjudged"])
            value = 0 if parse["unparsable"] and self.parser == "official" else parse["rating"]
            if value is None or parse["unjudged"]:
                continue
            kind = sample.truth["type"]
            found[f"{kind}/rated"] += 1
            found[f"{kind}/sum"] += value
            found[f"{kind}/hallucinated"] += value < WORST
        return found

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        rated, points, wrong = (sum(totals[f"{kind}/{key}"] for kind in TYPES) for key in COUNTS)
        return {
            "score": ratio(points, rated),
            "hallucination_rate": ratio(wrong, rated, 100),
            "rated": rated,
            "unparsable": totals["unparsable"],
            "unjudged": totals["unjudged"],
        } | {f"{kind}/score": ratio(totals[f"{kind}/sum"], totals[f"{kind}/rated"]) for kind in TYPES}
