"""Detect the benchmarks in a data folder, their versions and their problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from heal.bench.tasks import blink, chair, llava_bench, mme, mmhal, pope
from heal.bench.tasks.base import Task
from heal.bench.tasks.data_files import read_text
from heal.bench.tasks.image_presence import presence
from heal.errors import DataError, HealError

DEPTH = 2
FULL = {"mme": 2374, "mmhal": 96, "llava-bench": 60, "blink-twice": 896}  # questions of the complete benchmarks


@dataclass(frozen=True)
class Finding:
    """A benchmark found in a folder."""

    task: str
    place: str
    """Path relative to the surveyed folder."""
    what: str
    version: str
    images: int | None = None
    """Number of its images that exist."""
    of_images: int | None = None
    problem: str = ""
    """Error message, if the data cannot be used."""


def survey(folder: Path) -> list[Finding]:
    """All benchmarks found in a folder and up to two levels below."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    detectors = (_pope, _chair, _mme, _mmhal, _llava, _blink)
    try:
        places = [(place, str(place.relative_to(folder))) for place in _folders(folder, DEPTH)]
        return [finding for place in places for detect in detectors for finding in detect(*place)]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _folders(child, depth - 1)


def _found(name: str, where: str, make: Callable[[], tuple[Task, str, str]]) -> Finding:
    """The finding, with an error message if the data cannot be used."""
    try:
        task, what, version = make()
        seen = presence(task.samples())
    except HealError as error:
        return Finding(name, where, "", "", problem=str(error))
    return Finding(name, where, what, version, seen.there, seen.total)


def _pope(place: Path, where: str) -> Iterator[Finding]:
    for variant in pope.STEMS:
        files = {split: pope.question_file(place, variant, split) for split in pope.SPLITS}
        splits = tuple(split for split, path in files.items() if path.parent == place and path.is_file())
        if not splits:
            continue

        def make(variant: str = variant, splits: tuple[str, ...] = splits) -> tuple[Task, str, str]:
            task = pope.Pope(place, variant, splits)
            rows = ", ".join(f"{s} {len(q)}" for s, q in zip(splits, task.files.values(), strict=True))
            return task, f"{variant}: {rows}", task.version

        yield _found("pope", where, make)


def _chair(place: Path, where: str) -> Iterator[Finding]:
    direct = any((place / name).is_file() for name in chair.OBJECTS)
    if not direct and not (place / "annotations" / "instances_val2014.json").is_file():
        return

    def make() -> tuple[Task, str, str]:
        task = chair.Chair(place)
        table = "official synonyms" if (place / "synonyms.txt").is_file() else "own synonyms"
        ids = "image_ids.json" if (place / "image_ids.json").is_file() else "a draw"
        what = f"{len(task.objects)} images with ground truth, {len(task.samples())} asked about ({ids})"
        return task, what, f"{'objects file' if direct else 'COCO annotations'}, {table}"

    yield _found("chair", where, make)


def _mme(place: Path, where: str) -> Iterator[Finding]:
    texts = [name for name in mme.SUBTASKS if (place / f"{name}.txt").is_file()]
    if texts and _are_results(place / f"{texts[0]}.txt"):
        yield Finding("mme", where, f"{len(texts)} subtasks", "results, for `heal score mme`")
        return
    names = tuple(n for n in mme.SUBTASKS if n in texts or any((place / n).glob("**/*.txt")))
    if not names:
        return

    def make() -> tuple[Task, str, str]:
        task = mme.Mme(place, names)
        groups = [group for group, members in mme.GROUPS.items() if set(members) <= set(names)]
        return task, f"{len(names)} subtasks ({', '.join(groups) or ', '.join(names)})", _size("mme", task)

    yield _found("mme", where, make)


def _are_results(path: Path) -> bool:
    try:
        return read_text(path).partition("\n")[0].count("\t") == 3
    except DataError:
        return False  # creating the task reports what is wrong


def _mmhal(place: Path, where: str) -> Iterator[Finding]:
    if (place / "response_template.json").is_file():
        yield _found("mmhal", where, lambda: _judged(mmhal.MmHal(place), (place / "judge_template.txt").is_file()))


def _llava(place: Path, where: str) -> Iterator[Finding]:
    if (place / "questions.jsonl").is_file() and (place / "context.jsonl").is_file():
        yield _found(
            "llava-bench", where, lambda: _judged(llava_bench.LlavaBench(place), (place / "rule.json").is_file())
        )


def _judged(task: Task, template: bool) -> tuple[Task, str, str]:
    return task, "with the judge's template" if template else "without the judge's template", _size(task.name, task)


def _blink(place: Path, where: str) -> Iterator[Finding]:
    if (place / blink.MANIFEST).is_file():
        task = blink.BlinkTwice(place)
        yield _found("blink-twice", where, lambda: (task, "manifest", _size(task.name, task)))


def _size(name: str, task: Task) -> str:
    number = len(task.samples())
    return f"complete ({number} questions)" if number == FULL[name] else f"{number} of {FULL[name]} questions"
