"""Packed arrays: what the page reads is what was measured, within half a level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from heal.view.format import head, number, numbers, packed_scores, packed_types, unpacked_scores, utf16

VALUES = st.floats(-1e3, 1e3, width=32) | st.just(float("nan"))


@pytest.mark.parametrize("bits", [8, 16])
@given(scores=arrays(np.float32, array_shapes(min_dims=3, max_dims=3, max_side=5), elements=VALUES))
def test_scores_survive_within_half_a_level(bits: int, scores: np.ndarray) -> None:
    packed = packed_scores(scores, bits)
    if np.isnan(scores).all():
        assert packed is None
        return
    assert packed is not None
    found = unpacked_scores(packed, scores.shape)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(scores))
    spread = np.nan_to_num(
        np.nanmax(np.where(np.isnan(scores), -np.inf, scores), 0)
        - np.nanmin(np.where(np.isnan(scores), np.inf, scores), 0),
        posinf=0,
        neginf=0,
    )
    level = spread / (2**bits - 2)
    error = np.nan_to_num(np.abs(found - scores))
    assert (error <= level * 0.5 + 2e-6 * np.nan_to_num(np.abs(scores)) + 1e-30 + level * 0.01).all()


def test_repeated_steps_are_stored_once() -> None:
    types = np.repeat(np.arange(4, dtype=np.uint8), 5).reshape(20, 1, 1) * np.ones((1, 2, 3), np.uint8)
    packed = packed_types(types)
    assert packed["steps"] == [0, 5, 10, 15]
    scores = packed_scores(types.astype(np.float32), 16)
    assert scores is not None
    assert scores["steps"] == [0, 5, 10, 15]
    np.testing.assert_allclose(unpacked_scores(scores, types.shape), types, atol=1e-4)


def test_a_held_score_repeats_the_last_measurement() -> None:
    scores = np.full((7, 1, 2), np.nan, np.float32)
    scores[0], scores[3] = [[1, 2]], [[5, np.nan]]
    packed = packed_scores(scores, 16, hold=True)
    assert packed is not None
    found = unpacked_scores(packed, scores.shape)
    np.testing.assert_allclose(found[:3], np.broadcast_to([[1, 2]], (3, 1, 2)))
    np.testing.assert_allclose(found[3:], np.broadcast_to([[5, np.nan]], (4, 1, 2)))


def test_a_held_score_without_a_first_measurement() -> None:
    scores = np.full((4, 1, 1), np.nan, np.float32)
    scores[2] = 3
    packed = packed_scores(scores, 8, hold=True)
    assert packed is not None
    np.testing.assert_array_equal(unpacked_scores(packed, scores.shape).ravel(), [np.nan, np.nan, 3, 3])


def test_numbers_are_short_and_finite() -> None:
    assert numbers([1 / 3, float("nan"), float("-inf")]) == [0.33333, None, None]
    assert numbers([float("nan")]) is None
    assert numbers(None) is None
    assert number(1e-9) == 1e-9


def test_positions_count_utf16_units() -> None:
    assert utf16("a😀b", 2) == 3
    assert utf16("\ud83dx", 1) == 1  # half a character, as a token may be


def test_head_names_the_version() -> None:
    assert head("answer", "t") == {"format": "heal-view", "version": 1, "kind": "answer", "title": "t"}
