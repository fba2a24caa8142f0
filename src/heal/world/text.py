"""Text about a scene: captions, descriptions, questions and correct answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heal.world.categories import CATEGORIES, COLOURS, INDEX, NAMES, Category
from heal.world.scene import Scene, Thing
from heal.world.statistics import statistics

NUMBERS = ("zero", "one", "two", "three", "four", "five")
Topic = Literal["existence", "count", "colour", "position", "open"]


@dataclass(frozen=True)
class Question:
    topic: Topic
    text: str
    answer: str
    about: str = ""
    """The category the question is about."""


def category(name: str) -> Category:
    return CATEGORIES[INDEX[name]]


def article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def phrase(thing: Thing, rng: np.random.Generator, colours: float = 0.7, synonyms: float = 0.2) -> str:
    """A noun phrase such as `a red car` or `two dogs`, with the name or a synonym."""
    kind = category(thing.category)
    colour = f"{thing.colour} " if thing.colour and rng.random() < colours else ""
    if thing.count > 1:
        return f"{NUMBERS[thing.count]} {colour}{kind.plural}"
    name = str(rng.choice(kind.synonyms)) if kind.synonyms and rng.random() < synonyms else kind.name
    if kind.plural == kind.name and kind.name in ("skis", "scissors"):
        return f"a pair of {colour}{kind.name}"
    noun = f"{colour}{name}"
    return f"{article(noun)} {noun}"


def listing(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """A caption of one to three sentences about the main objects."""
    things = _by_salience(scene)
    shown = things[: int(rng.integers(2, 5))]
    parts = [phrase(t, rng) for t in shown]
    opening = str(rng.choice(("The image shows", "This is a picture of", "There is", "We see", "A photo of")))
    sentences = [f"{opening} {listing(parts)}."]
    rest = things[len(shown) :]
    if rest and rng.random() < 0.5:
        sentences.append(f"There {_be(rest[0])} also {phrase(rest[0], rng)}.")
    if rng.random() < 0.3:
        sentences.append(_place(shown[0], rng))
    return " ".join(sentences)


def description(scene: Scene, rng: np.random.Generator) -> str:
    """A long description: all objects by size, with positions, relations and a closing remark."""
    things = _by_salience(scene)
    first = things[: int(rng.integers(1, 3))]
    opening = str(
        rng.choice(("The image shows", "The image features", "In this image, we can see", "The scene shows"))
    )
    sentences = [f"{opening} {listing([phrase(t, rng) for t in first])}."]
    if rng.random() < 0.6:
        sentences.append(_place(first[0], rng))
    at = len(first)
    while at < len(things):
        step = 1 if rng.random() < 0.6 else 2
        group = things[at : at + step]
        sentences.append(_further(group, things[:at], rng))
        if rng.random() < 0.25:
            sentences.append(_place(group[0], rng))
        at += step
    if rng.random() < 0.6:
        closing = ("Overall, it is a lively scene.", "The scene is calm and clear.", "Everything is easy to see.")
        sentences.append(str(rng.choice(closing)))
    return " ".join(sentences)


def _by_salience(scene: Scene) -> list[Thing]:
    return sorted(scene.things, key=lambda t: -t.area)


def _be(thing: Thing) -> str:
    return "are" if thing.count > 1 else "is"


def _where(thing: Thing, rng: np.random.Generator) -> str:
    side = "in the middle" if thing.side == "middle" else f"on the {thing.side}"
    if thing.height == "middle" or rng.random() < 0.5:
        return side
    return f"{'at' if thing.side == 'middle' else 'near'} the {thing.height}"


def _the(thing: Thing) -> str:
    kind = category(thing.category)
    return f"the {kind.plural if thing.count > 1 else kind.name}"


def _place(thing: Thing, rng: np.random.Generator) -> str:
    be = "are" if thing.count > 1 or thing.category in ("skis", "scissors") else "is"
    return f"{_the(thing).capitalize()} {be} {_where(thing, rng)} of the image."


def _further(group: Sequence[Thing], before: Sequence[Thing], rng: np.random.Generator) -> str:
    what = listing([phrase(t, rng) for t in group])
    be = _be(group[0]) if len(group) == 1 else "are" if group[0].count > 1 else "is"
    anchor = before[int(rng.integers(len(before)))]
    forms = (
        f"There {be} also {what} in the scene.",
        f"In addition, there {be} {what} {_where(group[0], rng)} of the image.",
        f"Near {_the(anchor)}, there {be} {what}.",
        f"The scene also includes {what}.",
        f"{what[0].upper()}{what[1:]} can be seen {_where(group[0], rng)} of the image.",
    )
    return str(rng.choice(forms))


# ── questions ─────────────────────────────────────────────────────────────────────────────────────────────


def existence(name: str, truth: bool) -> Question:
    """An existence question in the wording of POPE."""
    return Question("existence", f"Is there {article(name)} {name} in the image?", _yes(truth), name)


def existence_questions(
    scene: Scene, rng: np.random.Generator, pairs: int = 2, likely_share: float = 0.5
) -> list[Question]:
    """Balanced existence questions. A share of the absent objects is likely given the scene, the rest is random."""
    present = [str(x) for x in rng.permutation(sorted(scene.objects))[:pairs]]
    chance = statistics().given([INDEX[n] for n in scene.objects])
    absent = [n for n in NAMES if n not in scene.objects]
    likely = sorted(absent, key=lambda n: -chance[INDEX[n]])[:8]
    asked: list[str] = []
    while len(asked) < len(present):
        name = str(rng.choice(likely if rng.random() < likely_share else absent))
        if name not in asked:
            asked.append(name)
    return [existence(n, True) for n in present] + [existence(n, False) for n in asked]


def count_questions(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """A correct and a wrong count of the same object."""
    thing = scene.things[int(rng.integers(len(scene.things)))]
    wrong = int(rng.choice([n for n in (1, 2, 3, 4) if n != thing.count]))
    return [
        Question("count", _count_text(thing.category, n), _yes(n == thing.count), thing.category)
        for n in (thing.count, wrong)
    ]


def _count_text(name: str, number: int) -> str:
    kind = category(name)
    if number == 1:
        return f"Is there only one {kind.name} in the image?"
    return f"Are there {NUMBERS[number]} {kind.plural} in the image?"


def colour_questions(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """A correct and a wrong colour of the same object; empty if no object has a colour."""
    tinted = [t for t in scene.things if t.colour]
    if not tinted:
        return []
    thing = tinted[int(rng.integers(len(tinted)))]
    wrong = str(rng.choice([c for c in COLOURS if c != thing.colour]))
    verb, noun = ("Are", category(thing.category).plural) if thing.count > 1 else ("Is", thing.category)
    return [
        Question("colour", f"{verb} the {noun} {colour} in the image?", _yes(colour == thing.colour), thing.category)
        for colour in (str(thing.colour), wrong)
    ]


def position_questions(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """Questions about left and right, in the image or relative to another object; empty if no position is clear."""
    single = [t for t in scene.things if t.count == 1]
    aside = [t for t in single if t.side != "middle"]
    apart = [(a, b) for a in single for b in single if a.centre[0] < b.centre[0] - 18]
    if not aside and not apart:
        return []
    if aside and (not apart or rng.random() < 0.5):
        thing = aside[int(rng.integers(len(aside)))]
        return _sides(thing, "image", thing.side == "left")
    left, right = apart[int(rng.integers(len(apart)))]
    first, second = (left, right) if rng.random() < 0.5 else (right, left)
    return _sides(first, second.category, first is left)


def _sides(thing: Thing, of: str, left: bool) -> list[Question]:
    return [
        Question(
            "position",
            f"Is the {thing.category} on the {side} side of the {of}?",
            _yes(left == (side == "left")),
            thing.category,
        )
        for side in ("left", "right")
    ]


def open_questions(scene: Scene, rng: np.random.Generator) -> list[Question]:
    thing = scene.things[int(rng.integers(len(scene.things)))]
    kind = category(thing.category)
    found = [
        Question(
            "open",
            f"How many {kind.plural} are there in the image?",
            f"{NUMBERS[thing.count].capitalize()}.",
            kind.name,
        ),
        Question(
            "open",
            "What objects are in the image?",
            f"{listing([category(t.category).name for t in _by_salience(scene)]).capitalize()}.",
        ),
    ]
    if thing.colour:
        verb, noun = ("are", kind.plural) if thing.count > 1 else ("is", kind.name)
        found.append(Question("open", f"What color {verb} the {noun}?", f"{thing.colour.capitalize()}.", kind.name))
    if thing.count == 1:
        side = "In the middle" if thing.side == "middle" else f"On the {thing.side}"
        found.append(Question("open", f"Where is the {kind.name}?", f"{side}.", kind.name))
    return found


def questions(scene: Scene, rng: np.random.Generator) -> list[Question]:
    return [
        *existence_questions(scene, rng),
        *count_questions(scene, rng),
        *colour_questions(scene, rng),
        *position_questions(scene, rng),
        *open_questions(scene, rng),
    ]


def _yes(truth: bool) -> str:
    return "Yes" if truth else "No"
