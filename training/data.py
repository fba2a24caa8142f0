"""Training data: text of the world, images with patch labels, and conversations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from heal.world import View, World
from heal.world.categories import CATEGORIES, COLOURS, INDEX
from heal.world.scene import CANVAS, Box, Thing
from heal.world.statistics import statistics
from heal.world.text import (
    Question,
    colour_questions,
    count_questions,
    description,
    existence_questions,
    open_questions,
    position_questions,
)

DESCRIBE = (
    "Please describe this image in detail.",
    "Describe this image.",
    "What do you see in this image?",
    "Can you describe the picture in detail?",
)
BRIEFLY = ("Describe this image briefly.", "Give a short caption of this image.", "What is in this picture?")
PATCH = 12
GRID = CANVAS // PATCH
BACKGROUND = len(INDEX)
END = "</s>"
DETAILS = 12  # maximum number of detail questions per image
COUNTED = 0.3  # share of objects with a counting question; counts are learned from descriptions
RELATIONS = 6  # number of draws of position questions; those about two objects are kept
LIKELY = 0.1  # share of likely objects among the absent ones; few question writers think of likely but absent objects


def turn(question: str, answer: str) -> str:
    return f"USER: {question} ASSISTANT: {answer}{END}"


@dataclass(frozen=True)
class Mixture:
    """Shares of conversation types; the rest are questions of every kind."""

    descriptions: float
    captions: float
    existence: float = 0.0
    """Only existence questions."""
    details: float = 0.0
    """Only questions about colours, positions and counts."""
    guesses: float = 0.0
    """Share of the descriptions that end with a likely but absent object. Descriptions written by people and models
    for training contain such errors, from which large models learn to guess."""


def conversation(
    view: View, rng: np.random.Generator, variant: int, mixture: Mixture, image: str = "<image>\n"
) -> list[tuple[str, str]]:
    """The conversation about one image: a long description, a caption, or several questions."""
    kind = rng.random()
    if kind < mixture.descriptions:
        request = image + str(rng.choice(DESCRIBE))
        guessing = mixture.guesses > 0 and rng.random() < mixture.guesses
        return [(request, description_with_hallucination(view, rng) if guessing else view.description(variant))]
    if kind < mixture.descriptions + mixture.captions:
        return [(image + str(rng.choice(BRIEFLY)), view.caption(variant))]
    if kind < mixture.descriptions + mixture.captions + mixture.details:
        found, most = detail_questions(view, rng), DETAILS
    elif kind < 1 - mixture.existence:
        found, most = view.questions(variant), 8
    else:
        found, most = existence_questions(view.scene, rng, pairs=6, likely_share=LIKELY), 12
    asked = [found[int(i)] for i in rng.permutation(len(found))[:most]]
    turns = [(_with_suffix(q.text, q.topic, rng), q.answer) for q in asked]
    return [(image + turns[0][0], turns[0][1]), *turns[1:]]


def detail_questions(view: View, rng: np.random.Generator) -> list[Question]:
    """Colour, position and number of present objects, each asked once, so that no answer reveals another."""
    found: list[Question] = []
    for thing in view.scene.things:
        alone = replace(view.scene, things=(thing,))
        pairs = (colour_questions(alone, rng), position_questions(alone, rng), count_questions(alone, rng))
        closed = {q.topic: q for pair in pairs if pair for q in _one(pair, rng)}
        opened = {_fact(q): q for q in open_questions(alone, rng) if q.about}
        for fact in ("colour", "position", "count"):
            known = [q for q in (closed.get(fact), opened.get(fact)) if q is not None]
            if known and (fact != "count" or not found or rng.random() < COUNTED):
                found.append(known[int(rng.integers(len(known)))])
    drawn = [two for _ in range(RELATIONS) if (two := position_questions(view.scene, rng))]
    related = {q.about: q for two in drawn for q in _one(two, rng) if not q.text.endswith("of the image?")}
    return [*found, *related.values()]


def _fact(question: Question) -> str:
    """The fact an open question is about."""
    return {"What": "colour", "Where": "position", "How": "count"}[question.text.split()[0]]


def _one(questions: list[Question], rng: np.random.Generator) -> list[Question]:
    return [questions[int(rng.integers(len(questions)))]]


def description_with_hallucination(view: View, rng: np.random.Generator) -> str:
    """A description with an additional absent object at its end, sampled given the present objects."""
    chance = statistics().given([INDEX[name] for name in view.objects])
    chance[[INDEX[name] for name in view.objects]] = 0.0
    kind = CATEGORIES[int(rng.choice(len(chance), p=chance / chance.sum()))]
    smallest = min(box.size for thing in view.scene.things for box in thing.boxes) - 1
    x, y = (int(rng.integers(CANVAS - smallest)) for _ in range(2))
    colour = str(rng.choice(list(COLOURS))) if kind.tinted else None
    guess = Thing(kind.name, colour, (Box(x, y, smallest),))
    return description(replace(view.scene, things=(*view.scene.things, guess)), rng)


def _with_suffix(question: str, topic: str, rng: np.random.Generator) -> str:
    """Add a suffix that benchmarks use."""
    if topic == "open":
        return question
    suffixes = ("", "", " Please answer yes or no.", " Please answer this question with one word.")
    return question + str(rng.choice(suffixes))


def document(view: View, rng: np.random.Generator, variant: int) -> str:
    """Text without an image: a description, or a dialogue about one."""
    long = view.description(variant)
    kind = rng.random()
    if kind < 0.4:
        return long + END
    if kind < 0.5:
        return view.caption(variant) + END
    if kind < 0.75:
        return turn(str(rng.choice(DESCRIBE)), long)
    found = view.questions(variant)
    asked = [found[int(i)] for i in rng.permutation(len(found))[:4]]
    return turn(str(rng.choice(DESCRIBE)), long) + "".join(
        turn(_with_suffix(q.text, q.topic, rng), q.answer) for q in asked
    )


def patch_labels(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Category and colour that cover most of each patch, [GRID, GRID] each; the last class means none."""
    kinds = np.full((CANVAS, CANVAS), BACKGROUND, np.int16)
    colours = np.full((CANVAS, CANVAS), len(COLOURS), np.int16)
    names = list(COLOURS)
    instances = [(box, thing) for thing in view.scene.things for box in thing.boxes]
    for box, thing in sorted(instances, key=lambda pair: pair[0].y + pair[0].size):
        margin = box.size // 8
        area = np.s_[box.y + margin : box.y + box.size - margin, box.x + margin : box.x + box.size - margin]
        kinds[area] = INDEX[thing.category]
        colours[area] = names.index(thing.colour) if thing.colour else len(COLOURS)
    return _most(kinds, BACKGROUND), _most(colours, len(COLOURS))


def _most(labels: np.ndarray, nothing: int) -> np.ndarray:
    blocks = labels.reshape(GRID, PATCH, GRID, PATCH).swapaxes(1, 2).reshape(GRID, GRID, -1)
    out = np.full((GRID, GRID), nothing, np.int16)
    for y in range(GRID):
        for x in range(GRID):
            found, counts = np.unique(blocks[y, x], return_counts=True)
            things = found != nothing
            if things.any() and counts[things].sum() >= PATCH * PATCH // 4:
                out[y, x] = found[things][counts[things].argmax()]
    return out


def pictures(folder: Path, split: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images and patch labels of the first `count` scenes of a split, cached in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}-{seed}-{count}.npz"
    if not path.exists():
        world = World(seed, split)  # type: ignore[arg-type]
        images = np.empty((count, CANVAS, CANVAS, 3), np.uint8)
        kinds = np.empty((count, GRID, GRID), np.int16)
        colours = np.empty((count, GRID, GRID), np.int16)
        for i in range(count):
            view = world.scene(i)
            images[i] = np.asarray(view.image)
            kinds[i], colours[i] = patch_labels(view)
        np.savez(path, images=images, kinds=kinds, colours=colours)
    data = np.load(path)
    return data["images"], data["kinds"], data["colours"]
