"""Mutated benchmark data of every task, and mutated answers of other programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heal.bench.tasks import catalogue, chair, mme, pope
from heal.bench.tasks.base import Sample, Task, figures, unit_counts
from heal.bench.tasks.data_folder import survey
from heal.bench.tasks.judged import JudgedTask
from heal.bench.tasks.labelled_files import labelled_files
from heal.errors import HealError
from heal.json_values import json_values
from tests.fuzz import odd
from tests.fuzz.odd import Mutated
from tests.fuzz.oracle import Draw, check

SUBTASKS = ("existence", "count")
ANSWERS = (
    "Yes",
    "No",
    "yes, there is a dog.",
    "no",
    "",
    "maybe",
    "A dog and a hot dog near two cars.",
    "\x1b[31m",
    "yes no",
    "😀",
)
LIMITS = {"total": 400, "hallucination": 800, "perception": 2000, "cognition": 800, "score": 200, "len": math.inf}
COUNTED = ("unparsable", "without_objects", "unjudged", "rated", "n", "model", "reference")


@dataclass(frozen=True)
class File:
    """A file of valid data: a JSON value, or text."""

    content: Any
    lines: bool = False
    exact: bool = True
    """Whether every change must be noticed; false for tables of words and the judge's template."""

    def written(self) -> bytes:
        return self.content.encode() if isinstance(self.content, str) else odd.dump(self.content, self.lines)

    def mutated(self, draw: Draw) -> Mutated:
        if isinstance(self.content, str):
            return odd.mutate_text(draw, self.content.encode())
        return odd.mutate_document(draw, self.content, self.lines)


def _pope(split: str) -> list[dict[str, Any]]:
    return [
        {
            "question_id": i,
            "image": f"COCO_val2014_{i // 3:012d}.jpg",
            "text": f"Is there a {thing} in the image?",
            "label": "yes" if i % 2 else "no",
        }
        for i, thing in enumerate(("dog", "cat", "car", split), 1)
    ]


def _mme(responses: bool) -> str:
    rows = [
        (f"{i:04d}.png", f"Is there {'a' if yes else 'no'} dog {i}?", "Yes" if yes else "No")
        for i in (1, 2)
        for yes in (1, 0)
    ]
    return "".join("\t".join((*row, "Yes") if responses else row) + "\n" for row in rows)


MMHAL = [
    {"question_type": kind, "question_topic": "x", "image_id": f"id{i}", "image_src": f"there/{i}_o.jpg",
     "image_content": ["Cat", "Dog"], "question": f"What is {i}?", "gt_answer": "It is.", "model_answer": ""}
    for i, kind in enumerate(("attribute", "adversarial", "comparison"))
]  # fmt: skip
BLINK = [
    {"group": "1", "image": f"{twin}.jpg", "twin": bool(twin), "question": f"Is it {answer}?", "answer": answer}
    for twin in (0, 1) for answer in ("yes", "no")
]  # fmt: skip
LLAVA_QUESTIONS = [
    {"question_id": i, "image": f"{i:03d}.jpg", "text": f"What is {i}?", "category": kind}
    for i, kind in enumerate(("conv", "detail", "complex"))
]  # fmt: skip
LLAVA_CONTEXT = [{"id": str(i), "image": f"{i:03d}.jpg", "caption": f"It is {i}."} for i in range(3)]
LLAVA_RULES = {f"llava_bench_{c}": {"role": "Assistant", "prompt": "Rate."} for c in ("conv", "detail", "complex")}
OBJECTS = {"1": ["dog", "car"], "2": ["cat"], "3": []}
ANNOTATIONS = (
    {"categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
     "annotations": [{"image_id": 5, "category_id": 1}, {"image_id": 6, "category_id": 2}]},
    {"images": [{"id": 5}, {"id": 6}], "annotations": [{"image_id": 5, "caption": "A man with a dog."}]},
)  # fmt: skip
TASKS: dict[str, dict[str, File]] = {
    "pope": {f"coco_pope_{split}.json": File(_pope(split), lines=True) for split in pope.SPLITS},
    "chair": {
        "objects.json": File(OBJECTS),
        "image_ids.json": File([1, 2, 3]),
        "synonyms.txt": File("dog, puppy\ncat, kitten\ncar, auto\nhot dog\n", exact=False),
    },
    "chair from COCO": {
        "annotations/instances_val2014.json": File(ANNOTATIONS[0]),
        "annotations/captions_val2014.json": File(ANNOTATIONS[1]),
    },
    "mme": {f"{name}.txt": File(_mme(False)) for name in SUBTASKS},
    "mmhal": {
        "response_template.json": File(MMHAL),
        "judge_template.txt": File("C: {}\nQ: {}\nA: {}\nR: {}\n", exact=False),
    },
    "llava-bench": {
        "questions.jsonl": File(LLAVA_QUESTIONS, lines=True),
        "context.jsonl": File(LLAVA_CONTEXT, lines=True),
        "answers_gpt4.jsonl": File([{"question_id": i, "text": f"That is {i}."} for i in range(3)], lines=True),
        "rule.json": File(LLAVA_RULES, exact=False),
    },
    "blink-twice": {"blink_twice.jsonl": File(BLINK, lines=True)},
}


def _made(name: str, folder: Path) -> Task:
    options = {"subtasks": SUBTASKS} if name == "mme" else {}
    return catalogue.create(name.split()[0], folder, **options)


def write(files: Mapping[str, File], folder: Path) -> None:
    for name, file in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(file.written())


def _known(sample: Sample) -> str:
    return json.dumps([sample.id, sample.unit, sample.prompt, json_values(dict(sample.truth))], sort_keys=True)


def data(draw: Draw) -> None:
    """A reader refuses the data, or gives the original samples unless a value itself changed."""
    name = draw.choice(list(TASKS))
    files = TASKS[name]
    changed = draw.choice(list(files))
    write(files, draw.place)
    before = {_known(s) for s in _made(name, draw.place).samples()}
    mutated = files[changed].mutated(draw)
    (draw.place / changed).write_bytes(mutated.content)
    draw.show(f"{name}, {changed}: {mutated.how}")
    check_survey(draw.place)
    task = _made(name, draw.place)
    samples = task.samples()
    _check_samples(samples)
    found = {_known(s) for s in samples}
    # an id may be a number or a string, and one of five reference captions may be empty
    another = re.search(r"question_id became '.*\S.*'$|/caption became ' ?'$", mutated.how)
    if files[changed].exact and mutated.change == "structure" and not another:
        check(found == before, f"{changed}: accepted with different samples ({mutated.how.partition(' ')[2][:40]})")
    if files[changed].exact and mutated.change == "removed":
        check(found <= before or _derived(name), f"{changed}: a part of it gives different samples")
    check_figures(draw, task, samples)


def _derived(name: str) -> bool:
    """Whether samples depend on the whole file, such as the number of questions per group or the drawn images."""
    return name in ("blink-twice", "chair from COCO", "mmhal", "mme")


def check_survey(folder: Path) -> None:
    """`heal data check` reports broken data and never fails."""
    try:
        found = survey(folder)
    except HealError:
        return
    json.dumps(json_values([f.__dict__ for f in found]), allow_nan=False)


def _check_samples(samples: Any) -> None:
    check(len(samples) > 0, "a task without samples")
    check(len({s.id for s in samples}) == len(samples), "two samples with the same id")
    for s in samples:
        check(
            isinstance(s.prompt, str) and isinstance(s.id, str) and isinstance(s.unit, str),
            "a sample that is not a string",
        )
        check(
            s.truth.get("label", "yes") in ("yes", "no"),
            f"a label that is neither yes nor no: {s.truth.get('label')!r}",
        )
        json.dumps(dict(s.truth), allow_nan=False)


def check_figures(draw: Draw, task: Task, samples: Any) -> None:
    """Figures of arbitrary answers are within their ranges."""
    parses: dict[str, Mapping[str, Any]] = {}
    for s in samples:
        text = draw.choice(ANSWERS)
        if isinstance(task, JudgedTask):
            reply = draw.choice(("Rating: 4", "8 9", "nonsense", None))
            parses[s.id] = task.judge(s, text, lambda prompt, reply=reply: reply)  # type: ignore[misc]
        else:
            parses[s.id] = task.parse(s, text)
    counts = unit_counts(task, samples, parses)
    in_range(figures(task, counts.values()), len(samples))


def in_range(found: Mapping[str, Any], number: int) -> None:
    for name, value in found.items():
        if not isinstance(value, float) or math.isnan(value):
            continue
        last = name.rpartition("/")[2]
        limit = number * 10 if last in COUNTED else LIMITS.get(last, 100)
        if last == "score" and "/" not in name:
            limit = math.inf  # percentage of the reference
        check(0 <= value <= limit, f"{name} = {value} is outside 0 to {limit}")


# ── answers of other programs ─────────────────────────────────────────────────────────────────────────────

Scorer = Callable[[Path], dict[str, Any]]
SCORED: dict[str, tuple[dict[str, File], Scorer]] = {
    "pope": (
        {
            "q.json": File(_pope("bus"), lines=True),
            "a.jsonl": File([{"question_id": i, "text": "Yes"} for i in range(1, 5)], lines=True),
        },
        lambda place: pope.score_files(place / "a.jsonl", place / "q.json"),
    ),
    "chair": (
        {
            "objects.json": File(OBJECTS),
            "captions.jsonl": File([{"image_id": i, "caption": "A dog and a cat."} for i in (1, 2, 3)], lines=True),
        },
        lambda place: chair.score_files(place / "captions.jsonl", place / "objects.json"),
    ),
    "mme": ({f"{name}.txt": File(_mme(True)) for name in SUBTASKS}, lambda place: mme.score_files(place)),
}


def scored_files(draw: Draw) -> None:
    """Scores are equal or refused, unless a value itself changed."""
    name = draw.choice(list(SCORED))
    files, score = SCORED[name]
    changed = draw.choice(list(files))
    write(files, draw.place)
    before = score(draw.place)
    mutated = files[changed].mutated(draw)
    (draw.place / changed).write_bytes(mutated.content)
    draw.show(f"heal score {name}, {changed}: {mutated.how}")
    found = score(draw.place)
    in_range(found, before["n"])
    json.dumps(json_values(found), allow_nan=False)
    nothing = re.search(r"(caption|text) became ' ?'$", mutated.how)  # an answer may be empty
    if mutated.change == "structure" and not nothing:
        check(repr(found) == repr(before), f"{changed}: accepted with different figures")


LABELLED = [{"image": f"{i}.png", "objects": ["dog", "cat"]} for i in range(3)]


def labelled(draw: Draw) -> None:
    """The images of `heal calibrate`."""
    path = draw.place / "pictures.jsonl"
    file = File(LABELLED, lines=True)
    mutated = file.mutated(draw)
    path.write_bytes(mutated.content)
    draw.show(mutated.how)
    found = labelled_files(path)
    told = [(p.image.name, p.objects) for p in found]
    if mutated.change == "structure" and "doubled" not in mutated.how and "objects/" not in mutated.how:
        check(told == [(f"{i}.png", frozenset(("dog", "cat"))) for i in range(3)], "accepted with different images")
