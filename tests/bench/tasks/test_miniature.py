"""The miniature benchmarks: correct, balanced, deterministic, and adversarial where they should be."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from heal.bench import create
from heal.bench.tasks.base import figures, unit_counts
from heal.bench.tasks.miniature import absent_objects
from heal.world import View, World
from heal.world.categories import INDEX, NAMES
from heal.world.statistics import statistics

NAMES_OF_TASKS = ("mini-pope", "mini-chair", "mini-mme")


@cache
def view(unit: str) -> View:
    return World(0, "test").scene(int(unit.rpartition("-")[2]))


def answered(task, say):
    parses = {s.id: task.parse(s, say(s)) for s in task.samples()}
    return figures(task, unit_counts(task, task.samples(), parses).values())


@pytest.mark.parametrize("name", NAMES_OF_TASKS)
def test_samples_are_deterministic_and_extend(name: str) -> None:
    task = create(name, count=6)
    assert task.samples() == create(name, count=6).samples()
    assert task.fingerprint == create(name, count=6).fingerprint
    others = [create(name, count=6, **o) for o in ({"seed": 1}, {"split": "validation"}, {"distribution": "counter"})]
    assert len({task.fingerprint, *(o.fingerprint for o in others)}) == 4
    larger = {s.id: s for s in create(name, count=9).samples()}
    assert all(larger[s.id] == s for s in task.samples())


@pytest.mark.parametrize("name", NAMES_OF_TASKS)
def test_images_match_the_scenes(name: str) -> None:
    for sample in create(name, count=2, distribution="counter").samples():
        index = int(sample.unit.rpartition("-")[2])
        assert np.array_equal(np.asarray(sample.image()), np.asarray(World(0, "test", "counter").scene(index).image))


def test_pope_is_correct_and_balanced() -> None:
    task = create("mini-pope", count=20)
    labels = Counter((split, s.truth["label"]) for s in task.samples() for split in s.truth["splits"])
    assert set(labels.values()) == {60}
    assert len({(s.unit, s.prompt) for s in task.samples()}) == len(task.samples())  # nothing is asked twice
    assert len(labels) == 6
    present: dict[str, set[tuple[str, str]]] = {}
    for s in task.samples():
        assert (s.truth["label"] == "yes") == (s.truth["object"] in view(s.unit).objects)
        assert f" {s.truth['object']} in the image?" in s.prompt
        if s.truth["label"] == "yes":
            for split in s.truth["splits"]:
                present.setdefault(split, set()).add((s.unit, s.truth["object"]))
    assert present["random"] == present["popular"] == present["adversarial"]


def test_absent_objects_follow_the_recipe() -> None:
    stats, rng = statistics(), np.random.default_rng(0)
    objects = frozenset(("fork", "cup", "pizza", "person"))
    popular = absent_objects("popular", objects, ["fork", "cup", "pizza"], rng)
    ranked = sorted(set(NAMES) - objects, key=lambda n: -stats.marginal[INDEX[n]])
    assert popular == ranked[:3]
    first, second, third = absent_objects("adversarial", objects, ["fork", "cup", "pizza"], rng)
    left = [n for n in NAMES if n not in objects]
    assert first == max(left, key=lambda n: stats.joint[INDEX["fork"], INDEX[n]])
    assert len({first, second, third}) == 3
    left.remove(first)
    assert second == max(left, key=lambda n: stats.joint[INDEX["cup"], INDEX[n]])
    drawn = {n for _ in range(200) for n in absent_objects("random", objects, ["fork"], rng)}
    assert not drawn & objects
    assert len(drawn) > 50


def test_adversarial_misleads_more_than_random() -> None:
    """Measured by the probability of the absent object given the present ones."""
    lure: dict[str, list[float]] = {}
    for s in create("mini-pope", count=40).samples():
        if s.truth["label"] == "no":
            chance = statistics().given([INDEX[n] for n in view(s.unit).objects])
            for split in s.truth["splits"]:
                lure.setdefault(split, []).append(chance[INDEX[s.truth["object"]]])
    assert np.mean(lure["adversarial"]) > 3 * np.mean(lure["random"])
    assert np.mean(lure["popular"]) > 2 * np.mean(lure["random"])


def test_pope_figures_of_perfect_and_constant_answers() -> None:
    task = create("mini-pope", count=8)
    perfect = answered(task, lambda s: s.truth["label"])
    assert [perfect[k] for k in ("accuracy", "f1", "yes_ratio", "unparsable")] == [100, 100, 50, 0]
    always = answered(task, lambda s: "Yes")
    assert [always[k] for k in ("accuracy", "recall", "yes_ratio")] == [50, 100, 100]
    assert always["f1"] == pytest.approx(200 / 3)
    wrong = {"yes": "no", "no": "yes"}
    random_only = answered(
        task, lambda s: s.truth["label"] if "random" in s.truth["splits"] else wrong[s.truth["label"]]
    )
    assert random_only["random/accuracy"] == 100
    assert random_only["popular/recall"] == 100  # questions about present objects are shared by all splits
    assert 50 <= random_only["popular/accuracy"] < 60


def test_chair_of_correct_and_hallucinated_descriptions() -> None:
    task = create("mini-chair", count=20)
    true = answered(task, lambda s: view(s.unit).description())
    assert [true[k] for k in ("chair_s", "chair_i", "recall", "precision", "f1")] == [0, 0, 100, 100, 100]
    assert true["len"] > 15

    def lie(sample) -> str:
        absent = next(n for n in NAMES if n not in sample.truth["objects"])
        return f"A {sample.truth['objects'][0]}, a {absent} and the {absent}."

    false = answered(task, lie)
    assert [false[k] for k in ("chair_s", "precision")] == [100, 50]
    assert false["chair_i"] == pytest.approx(200 / 3)
    silent = answered(task, lambda s: "")
    assert (silent["chair_s"], silent["recall"], silent["without_objects"]) == (0, 0, 20)
    assert np.isnan(silent["chair_i"])


def test_mme_pairs_are_yes_and_no() -> None:
    task = create("mini-mme", count=15)
    pairs: dict[tuple[str, int], list[str]] = {}
    for s in task.samples():
        assert s.prompt.endswith("? Please answer yes or no.")
        pairs.setdefault((s.truth["subtask"], s.truth["pair"]), []).append(s.truth["label"])
    assert Counter(subtask for subtask, _ in pairs) == dict.fromkeys(("existence", "count", "position", "color"), 15)
    assert all(sorted(labels) == ["no", "yes"] for labels in pairs.values())
    perfect = answered(task, lambda s: s.truth["label"].capitalize())
    assert (perfect["hallucination"], perfect["total"], perfect["count/score"]) == (800, 800, 200)
    always = answered(task, lambda s: "Yes")
    assert (always["hallucination"], always["count/accuracy"], always["count/accuracy_plus"]) == (200, 50, 0)
