"""The miniature world: deterministic, correct, and with the priors of real images."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from heal.errors import ConfigError
from heal.world import World
from heal.world.categories import CATEGORIES, INDEX, NAMES
from heal.world.mentions import mentions
from heal.world.scene import CANVAS, FEWEST, MOST
from heal.world.statistics import statistics
from heal.world.text import existence_questions

MANY = 150


def fingerprint(world: World, index: int) -> str:
    view = world.scene(index)
    said = [view.caption(), view.description(), *(q.text + q.answer for q in view.questions())]
    return hashlib.sha256(np.asarray(view.image).tobytes() + "|".join(said).encode()).hexdigest()


@pytest.mark.parametrize("distribution", ["natural", "counter"])
def test_scenes_are_deterministic(distribution) -> None:
    assert fingerprint(World(3, "test", distribution), 7) == fingerprint(World(3, "test", distribution), 7)


def test_seeds_splits_and_distributions_share_no_scene() -> None:
    worlds = [
        World(s, split, d)
        for s in (0, 1)
        for split in ("train", "validation", "test")
        for d in ("natural", "counter")
    ]
    assert len({fingerprint(world, i) for world in worlds for i in range(5)}) == 5 * len(worlds)


def test_scenes_are_well_formed() -> None:
    for i in range(MANY):
        scene = World(0, "test").scene(i).scene
        assert FEWEST <= len(scene.objects) == len(scene.things) <= MOST
        for thing in scene.things:
            assert 1 <= thing.count <= 4
            assert (thing.colour is not None) == CATEGORIES[INDEX[thing.category]].tinted
            assert all(
                b.x >= 0 and b.x + b.size <= CANVAS and b.y >= 0 and b.y + b.size <= CANVAS for b in thing.boxes
            )


def test_images_show_their_objects() -> None:
    """An image differs from the same scene without an object where the object is drawn."""
    from dataclasses import replace

    from heal.world.render import render

    for i in range(10):
        scene = World(0, "test").scene(i).scene
        for thing in scene.things:
            without = replace(scene, things=tuple(t for t in scene.things if t is not thing))
            if not without.things:
                continue
            box = thing.boxes[0]
            area = np.s_[box.y : box.y + box.size, box.x : box.x + box.size]
            assert not np.array_equal(np.asarray(render(scene))[area], np.asarray(render(without))[area])


@pytest.mark.parametrize("distribution", ["natural", "counter"])
def test_texts_name_only_present_objects(distribution) -> None:
    for i in range(MANY):
        view = World(1, "test", distribution).scene(i)
        for variant in range(2):
            assert {m.category for m in mentions(view.caption(variant))} <= view.objects
            assert {m.category for m in mentions(view.description(variant))} == view.objects


def test_answers_are_correct() -> None:
    for i in range(MANY):
        view = World(2, "validation").scene(i)
        for question in view.questions():
            thing = view.scene.thing(question.about) if question.about else None
            if question.topic == "existence":
                assert (question.answer == "Yes") == (question.about in view.objects)
            elif question.topic == "count":
                assert thing is not None
                numbers = ("one", "two", "three", "four")
                (number,) = [n for n in numbers if f" {n} " in question.text]
                assert (question.answer == "Yes") == (numbers[thing.count - 1] == number)
            elif question.topic == "colour":
                assert thing is not None
                assert (question.answer == "Yes") == (f" {thing.colour} in the image?" in question.text)


def test_positions_are_correct() -> None:
    asked: Counter[str] = Counter()
    for i in range(MANY):
        view = World(2, "test").scene(i)
        for question in (q for q in view.questions() if q.topic == "position"):
            first, second = question.text.removeprefix("Is the ").removesuffix("?").split(" side of the ")
            first, side = first.split(" on the ")
            thing = view.scene.thing(first)
            assert thing is not None
            if second == "image":
                middle = CANVAS / 2
            else:
                other = view.scene.thing(second)
                assert other is not None
                middle = other.centre[0]
            truth = thing.centre[0] < middle if side == "left" else thing.centre[0] > middle
            assert (question.answer == "Yes") == truth
            asked["image" if second == "image" else "thing"] += 1
    assert min(asked["image"], asked["thing"]) > MANY // 4


def test_questions_are_balanced_and_adversarial() -> None:
    rng = np.random.default_rng(0)
    answers: Counter[str] = Counter()
    lure = []
    for i in range(MANY):
        view = World(0, "test").scene(i)
        chance = statistics().given([INDEX[n] for n in view.objects])
        for question in existence_questions(view.scene, rng):
            answers[question.answer] += 1
            if question.answer == "No":
                lure.append(chance[INDEX[question.about]])
    assert answers["Yes"] == answers["No"]
    assert np.mean(lure) > 1.5 * statistics().marginal.mean()


def test_co_occurrence_in_natural_and_counter_scenes() -> None:
    """A fork makes a knife several times as likely in natural scenes; counter scenes lack likely objects."""
    stats = statistics()
    fork, knife = INDEX["fork"], INDEX["knife"]
    assert stats.given([fork])[knife] > 4 * stats.marginal[knife]

    def surprise(distribution) -> float:
        views = [World(0, "test", distribution).scene(i) for i in range(MANY)]
        return float(
            np.mean(
                [stats.given([INDEX[m] for m in v.objects if m != n])[INDEX[n]] for v in views for n in v.objects]
            )
        )

    assert surprise("natural") > 2 * surprise("counter")


def test_statistics_are_probabilities() -> None:
    stats = statistics()
    assert stats.weights.sum() == pytest.approx(1)
    assert ((stats.chances >= 0) & (stats.chances < 1)).all()
    assert stats.chances.shape[1] == len(NAMES)
    assert np.allclose(stats.joint, stats.joint.T)
    assert (np.diag(stats.joint) == stats.marginal).all()


def test_longest_name_wins() -> None:
    text = "A teddy bear and a bear eat two hot dogs near the dogs. A woman sits on the sofa with wine glasses."
    assert [m.category for m in mentions(text)] == [
        "teddy bear",
        "bear",
        "hot dog",
        "dog",
        "person",
        "couch",
        "wine glass",
    ]
    assert [text[m.start : m.stop] for m in mentions(text)][2] == "hot dogs"


@pytest.mark.parametrize("options", [{"split": "dev"}, {"distribution": "odd"}, {"seed": -1}])
def test_unknown_worlds_are_refused(options, without_type_checker) -> None:
    with pytest.raises(ConfigError):
        World(**options)
    with pytest.raises(ConfigError):
        World().scene(-1)
