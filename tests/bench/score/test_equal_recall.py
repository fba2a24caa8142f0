"""Gain at equal recall: known curves, the bootstrap by hand, and cuts of captions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from heal.bench import create
from heal.bench.score.equal_recall import KEYS, MOST, cut_counts, equal_recall
from heal.bench.tasks.chair import sentence_cuts
from heal.errors import DataError

Rows = list[dict[str, float]]


def caption(*cuts: Sequence[float]) -> Rows:
    """Counts (wrong, mentions, hits, truths) after each sentence."""
    return [dict(zip(KEYS, map(float, cut), strict=True)) for cut in cuts]


PLAIN = caption((0, 2, 2, 10), (1, 5, 4, 10), (4, 10, 6, 10))  # CHAIR_i 0, 20, 40 at recall 20, 40, 60


def test_known_curves() -> None:
    """The other method has CHAIR_i 5 at recall 20 and 15 at recall 50: a line of its own."""
    other = caption((1, 20, 2, 10), (3, 20, 5, 10))
    found = equal_recall({"a": PLAIN}, {"a": other})
    assert found is not None
    assert (found.lowest_recall, found.highest_recall) == (20, 50)
    assert (found.first, found.second) == (30, 15)
    assert found.highest.value == pytest.approx(-15)
    # the gap is 5 at recall 20, 35/3 − 20 at 40, −15 at 50
    area = 20 * (5 + 35 / 3 - 20) / 2 + 10 * (35 / 3 - 20 - 15) / 2
    assert found.mean.value == pytest.approx(area / 30)
    assert (found.mean.low, found.mean.high) == pytest.approx((found.mean.value,) * 2)  # one unit, no variation


def test_fewer_objects_alone_are_no_gain() -> None:
    """A method that stops after a sentence has a better CHAIR_i, and gains nothing."""
    found = equal_recall({"a": PLAIN, "b": PLAIN}, {"a": PLAIN[:2], "b": PLAIN[:2]})
    assert found is not None
    assert (found.mean.value, found.highest.value, found.highest_recall) == (0, 0, 40)
    assert not found.mean.excludes_zero


def test_order_of_methods_only_changes_the_sign() -> None:
    rng = np.random.default_rng(0)
    first, second = ({f"u{i}": random_caption(rng) for i in range(12)} for _ in range(2))
    there, back = equal_recall(first, second, resamples=100), equal_recall(second, first, resamples=100)
    assert there is not None
    assert back is not None
    assert there.mean.value == pytest.approx(-back.mean.value)
    assert there.highest.value == pytest.approx(-back.highest.value)
    assert (there.mean.low, there.mean.high) == pytest.approx((-back.mean.high, -back.mean.low))


def random_caption(rng: np.random.Generator) -> Rows:
    steps = rng.integers(0, 3, size=(int(rng.integers(1, 6)), 2)).cumsum(0)
    return caption(*[(wrong, wrong + hits, min(hits, 8), 8) for wrong, hits in steps])


def test_bootstrap_equals_a_loop_over_resampled_captions() -> None:
    rng = np.random.default_rng(1)
    first, second = ({f"u{i}": random_caption(rng) for i in range(20)} for _ in range(2))
    found = equal_recall(first, second, seed=3, resamples=50)
    weights = np.random.default_rng(3).multinomial(20, np.full(20, 1 / 20), size=50)
    means, highest = [], []
    for row in weights:
        names = [f"u{i}" for i, times in enumerate(row) for _ in range(times)]
        one = equal_recall(
            {f"{k}": first[name] for k, name in enumerate(names)},
            {f"{k}": second[name] for k, name in enumerate(names)},
            resamples=1,
        )
        assert one is not None
        means.append(one.mean.value)
        highest.append(one.highest.value)
    assert found is not None
    assert (found.mean.low, found.mean.high) == pytest.approx(np.nanpercentile(means, [2.5, 97.5]))
    assert (found.highest.low, found.highest.high) == pytest.approx(np.nanpercentile(highest, [2.5, 97.5]))


def test_no_common_recall_is_unknown_and_no_units_are_none() -> None:
    found = equal_recall({"a": caption((0, 1, 1, 10))}, {"a": caption((0, 5, 5, 10))}, resamples=5)
    assert found is not None
    assert math.isnan(found.mean.value)
    assert math.isnan(found.highest.low)
    nothing = equal_recall({"a": caption((0, 0, 0, 3))}, {"a": PLAIN}, resamples=5)
    assert nothing is not None
    assert math.isnan(nothing.mean.value)
    assert equal_recall({}, {}) is None
    with pytest.raises(DataError, match="cannot be paired"):
        equal_recall({"a": PLAIN}, {"b": PLAIN})


def test_cuts() -> None:
    assert sentence_cuts("A dog. A cat! And") == ["A dog.", "A dog. A cat!", "A dog. A cat! And"]
    assert sentence_cuts("A dog. A cat. \n") == ["A dog.", "A dog. A cat."]
    assert sentence_cuts("a dog") == ["a dog"]
    assert sentence_cuts("") == [""]


def test_cuts_of_a_task_end_with_the_whole_caption() -> None:
    task = create("mini-chair", count=2)
    first, second = task.samples()
    names = sorted(first.truth["objects"])
    text = f"There is a {names[0]}. There is a unicorn. " + "It is dark. " * 60 + f"A {names[1]}"
    found = cut_counts(task, task.samples(), {first.id: text})
    assert list(found) == [first.unit]
    rows = found[first.unit]
    assert len(rows) == MOST
    assert [rows[0]["hits"], rows[-2]["hits"], rows[-1]["hits"]] == [1, 1, 2]
    whole = task.counts([first], [task.parse(first, text)])
    assert rows[-1] == {key: whole[key] for key in KEYS}
    assert cut_counts(create("mini-pope", count=1), create("mini-pope", count=1).samples(), {}) == {}
    assert second.unit not in found
