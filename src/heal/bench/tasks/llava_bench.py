"""LLaVA-Bench (In-the-Wild): a judge compares an answer with a reference answer, both scored 1 to 10."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from heal.bench.tasks.base import Number, Sample, grouped_by_unit, ratio
from heal.bench.tasks.data_files import kind, need, need_id, need_image, need_text, read_object, read_records
from heal.bench.tasks.image_files import NamedImage
from heal.bench.tasks.judged import JudgedTask, Prompt
from heal.errors import DataError, shortened

CATEGORIES = ("conv", "detail", "complex")
SOURCE = "the data set liuhaotian/llava-bench-in-the-wild"
RULES = "the GitHub repository haotian-liu/LLaVA, llava/eval/table/rule.json"
SYSTEM = "You are a helpful and precise assistant for checking the quality of the answer."
COUNTS = ("rated", "model", "reference")


NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?", re.ASCII)


def scores(reply: str) -> tuple[float, float] | str:
    """Parse (reference, model) scores from the first line, or return an error (officially −1 and −1)."""
    words = reply.split("\n")[0].replace(",", " ").split()
    if len(words) != 2 or not all(map(NUMBER.fullmatch, words)):
        return "reply without two scores in its first line"
    first, second = map(float, words)
    return (first, second) if all(0 <= value <= 10 for value in (first, second)) else "score that is not 0 to 10"


@dataclass(frozen=True)
class LlavaBench(JudgedTask):
    """LLaVA-Bench from official data: questions, contexts, reference answers, judge rules and images."""

    name: ClassVar[str] = "llava-bench"
    summary: ClassVar[str] = "LLaVA-Bench In-the-Wild: a judge compares answers with a reference."
    max_new_tokens: ClassVar[int] = 1024
    headline: ClassVar[str] = "score"

    data: Path
    """The folder with questions, context, answers_gpt4 (.jsonl) and rule.json, or one with a folder `llava_bench`."""
    images: Path | None = None
    """The folder of the images."""

    @property
    def folder(self) -> Path:
        return self.data / "llava_bench" if (self.data / "llava_bench").is_dir() else self.data

    @cached_property
    def rules(self) -> dict[str, Any]:
        rules = read_object(self.folder / "rule.json", RULES)
        for category in CATEGORIES:
            where = f"rule.json, {category}"
            rule = need(rules, f"llava_bench_{category}", "rule.json")
            need_text(rule, "prompt", where)
            if "role" in rule:
                need_text(rule, "role", where)
        return rules

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        contexts = self._table("context.jsonl", "image", "caption")
        references = self._table("answers_gpt4.jsonl", "question_id", "text")
        found = []
        for number, q in enumerate(read_records(self.folder / "questions.jsonl", SOURCE), 1):
            where = f"questions.jsonl, line {number}"
            key, image = need_id(q, "question_id", where), need_image(q, "image", where)
            category = need_text(q, "category", where)
            if category not in CATEGORIES:
                given = repr(shortened(category))
                raise DataError(f"{where} has the category {given}: it must be one of {', '.join(CATEGORIES)}")
            truth = {
                "category": category,
                "question": need_text(q, "text", where),
                "context": need(contexts, image, "context.jsonl"),
                "reference": need(references, key, "answers_gpt4.jsonl"),
            }
            found.append(Sample(key, image, truth["question"], truth, NamedImage(image, self.folder, self.images)))
        return grouped_by_unit(found, "LLaVA-Bench")

    def _table(self, name: str, key: str, value: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, record in enumerate(read_records(self.folder / name, SOURCE), 1):
            where = f"{name}, line {number}"
            own = need_id(record, key, where)
            if own in found:
                raise DataError(f"{where}: the {key} {shortened(own)} occurs twice")
            found[own] = _joined(record, value, where)
        return found

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def judge_prompt(self, sample: Sample, text: str) -> Prompt:
        facts, rule = sample.truth, self.rules[f"llava_bench_{sample.truth['category']}"]
        role = rule.get("role", "Assistant")
        parts = [f"[Context]\n{facts['context']}", f"[Question]\n{facts['question']}"]
        for number, answer in enumerate((facts["reference"], text), 1):
            parts += [f"[{role} {number}]\n{answer}", f"[End of {role} {number}]"]
        return Prompt(SYSTEM, "\n\n".join([*parts, f"[System]\n{rule['prompt']}"]) + "\n\n")

    def read_reply(self, sample: Sample, reply: str) -> dict[str, Any]:
        found = scores(reply)
        why, (reference, model) = (found, (None, None)) if isinstance(found, str) else ("", found)
        pair = {"reference": reference, "model": model}
        return pair | {"unparsable": bool(why), "unjudged": False, "why": why, "reply": reply}

    def unjudged(self) -> dict[str, Any]:
        return {"reference": None, "model": None, "unparsable": False, "unjudged": True}

    def counts(self, samples: Sequence[Sample], parses: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        found = {f"{name}/{key}": 0.0 for name in CATEGORIES for key in COUNTS} | {"unparsable": 0.0, "unjudged": 0.0}
        for sample, parse in zip(samples, parses, strict=True):
            found["unparsable"] += bool(parse["unparsable"])
            found["unjudged"] += bool(parse["unjudged"])
            if parse["model"] is not None:
                name = sample.truth["category"]
                found[f"{name}/rated"] += 1
                found[f"{name}/model"] += parse["model"]
                found[f"{name}/reference"] += parse["reference"]
        return found

    def score(self, totals: Mapping[str, Number]) -> dict[str, Number]:
        """The relative score: the model's score as a percentage of the reference's score."""
        rated, model, reference = (sum(totals[f"{name}/{key}"] for name in CATEGORIES) for key in COUNTS)
        return {
            "score": ratio(model, reference, 100),
            "model": ratio(model, rated),
            "reference": ratio(reference, rated),
            "rated": rated,
            "unparsable": totals["unparsable"],
            "unjudged": totals["unjudged"],
        } | {f"{n}/score": ratio(totals[f"{n}/model"], totals[f"{n}/reference"], 100) for n in CATEGORIES}


def _joined(record: Mapping[str, Any], key: str, where: str) -> str:
    """A string, or a list of strings joined to one."""
    value = need(record, key, where)
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, str):
            raise DataError(f"{where}: `{key}` must be a string, not {kind(part)}")
    if not any(part.strip() for part in parts):
        raise DataError(f"{where}: `{key}` is empty")
    return "\n".join(parts)
