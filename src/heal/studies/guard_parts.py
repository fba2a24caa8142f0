"""What the study of the guard measures: sentences with their risks, and answers of the guard and of other methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heal.bench.tasks import catalogue
from heal.bench.tasks.base import Task
from heal.bench.tasks.task_views import FirstUnits, LaterUnits
from heal.methods import HEAL, Combined, Method
from heal.methods.guard import Guard
from heal.studies.comparison import published
from heal.studies.interval import chosen
from heal.studies.parts import Evaluation, Part, Records
from heal.studies.sentence_risks import DETECTOR, LOGPROB, RANDOM, Described, chosen_threshold, sentence_risks
from heal.studies.setup import Setup
from heal.studies.study import Found

LOSS = 1.5
"""Points of recall that the threshold may cost on the images where it is chosen."""
MOST_CHOOSING = 500
"""Images where the threshold is chosen."""
MOST_OTHERS = 100
"""Images that other methods describe."""
MOST_ASKED = 200
"""Images that questions are asked about: the guard may not change an answer to them."""
PLAIN, GUARD, RETRY = "plain", "guard", "guard, retry"
HEALED, BOTH = "heal, chosen options", "heal, chosen options + guard"
BY_LOGPROB, BY_CHANCE = "guard, log-probability", "guard, random"
CAPTIONS, QUESTIONS, OTHERS = "captions", "questions", "others"
WORDS: Mapping[bool, str] = {True: "world", False: "coco"}


def choosing(setup: Setup, distribution: str) -> Task:
    """The images where the threshold is chosen: other scenes of the validation split, or the first half of official
    data."""
    if setup.data is not None:
        task = setup.task("chair", distribution)
        return FirstUnits(task, max(1, _units(task) // 2))
    count = min(setup.images or MOST_CHOOSING, MOST_CHOOSING)
    options = {"count": count, "distribution": distribution, "split": "validation", "seed": setup.seed + 1}
    return catalogue.make("mini-chair", None, options)


def judging(setup: Setup, distribution: str) -> Task:
    """The images where the guard is judged."""
    task = setup.task("chair", distribution)
    return task if setup.data is None else LaterUnits(task, max(1, _units(task) // 2))


def _units(task: Task) -> int:
    return len({sample.unit for sample in task.samples()})


def parts(setup: Setup) -> list[Part]:
    found: list[Part] = []
    for distribution in setup.distributions:
        found.append(sentence_risks(f"choosing {distribution}", choosing(setup, distribution), setup))
        found.append(sentence_risks(f"judging {distribution}", judging(setup, distribution), setup))
    return found


def thresholds(found: Found) -> dict[str, float]:
    """The threshold for each kind of risk. A random guard drops as many sentences as the detector's."""
    every = [described(found, "choosing", distribution) for distribution in found.setup.distributions]
    known = {kind: chosen_threshold(every, kind, LOSS) for kind in (DETECTOR, LOGPROB)}
    dropped = [own.share_dropped(DETECTOR, known[DETECTOR]) for own in every]
    return known | {RANDOM: round(1 - sum(dropped) / len(dropped), 4)}


def described(found: Found, part: str, distribution: str) -> Described:
    task = {"choosing": choosing, "judging": judging}[part](found.setup, distribution)
    return Described.of(task, found.records(f"{part} {distribution}"), found.setup.seed)


def settings(setup: Setup, at: Mapping[str, float]) -> dict[str, Method | None]:
    """The plain model, the guard with its controls, HEAL, and both together."""
    words = WORDS[setup.data is None]
    given = next((m for m in setup.methods.values() if isinstance(m, Guard)), Guard())
    guard, form = replace(given, threshold=at[DETECTOR], action="drop"), chosen(setup)
    by = {kind: Guard(risk=kind, threshold=at[kind], words=words, seed=setup.seed) for kind in (LOGPROB, RANDOM)}  # type: ignore[arg-type]
    return {
        PLAIN: None,
        GUARD: guard,
        RETRY: replace(guard, action="retry"),
        BY_LOGPROB: by[LOGPROB],
        BY_CHANCE: by[RANDOM],
        HEALED: form,
        BOTH: Combined((form, guard)),
    }


def follow_up(found: Found) -> list[Part]:
    setup = found.setup
    if empty(found):
        return []
    methods = settings(setup, thresholds(found))
    captions = {setup.task_name("chair", d): judging(setup, d) for d in setup.distributions}
    others = {name: FirstUnits(task, MOST_OTHERS) for name, task in captions.items() if _units(task) > MOST_OTHERS}
    fewer = replace(setup, samples=min(setup.images or MOST_ASKED, MOST_ASKED))
    questions = fewer.tasks(*(b for b in ("pope", "mme") if setup.has(b)))
    return [
        Evaluation(CAPTIONS, captions, methods, setup.settings),
        Evaluation(QUESTIONS, questions, {PLAIN: None, GUARD: methods[GUARD]}, setup.settings),
        Evaluation(OTHERS, captions | others, other_methods(setup), setup.settings),
    ]


def other_methods(setup: Setup) -> dict[str, Method | None]:
    """The plain model, and what the user gave, or every method with its published options."""
    given = {name: m for name, m in setup.methods.items() if not isinstance(m, HEAL | Guard)}
    return {PLAIN: None, **given} if setup.methods else published()


def empty(found: Found) -> str:
    """Why nothing could be measured, such as a model without a detector."""
    for name, part in found.parts.items():
        if isinstance(part, Records) and len(failed := part.failed()) == len(part):
            return f"{name}: {next(iter(failed.values()), 'no images')}"
    return ""
