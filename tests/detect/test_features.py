"""Features: known values, missing measurements, and the same values while the answer is generated."""

from typing import Any

import numpy as np
import pytest

from heal.detect.features import FAMILIES, TEXT, features, named, names_of, whole
from tests.detect.making import HEADS, LAYERS, STEPS, WORDS, measured, prefix, word


def column(family: str, name: str, **changes: Any) -> np.ndarray:
    found = features(measured(**changes), WORDS, [family])
    return found.values[family][:, FAMILIES[family].names(LAYERS, HEADS).index(name)]


def test_every_column_has_a_name() -> None:
    found = features(measured(), WORDS)
    for name, family in FAMILIES.items():
        assert found.values[name].shape == (STEPS, len(family.names(LAYERS, HEADS)))
        assert np.isfinite(found.values[name]).all()
    columns = whole(list(FAMILIES), LAYERS, HEADS)
    names = names_of(columns, LAYERS, HEADS)
    assert len(set(names)) == len(names) == found.matrix(columns).shape[1]


def test_columns_are_found_by_their_names() -> None:
    found = features(measured(), WORDS)
    columns = named(["logprob", "margin", "visual share 1.2", "drift"], LAYERS, HEADS)
    assert names_of(columns, LAYERS, HEADS) == ["logprob", "margin", "visual share 1.2", "drift"]
    np.testing.assert_array_equal(found.matrix(columns)[:, 2], found.values["share"][:, 5])
    with pytest.raises(ValueError, match=r"no feature 'visual share 2.0'"):
        named(["visual share 2.0"], LAYERS, HEADS)


def test_attention_of_the_middle_layers() -> None:
    attention = np.zeros((STEPS, 32, HEADS), np.float32)
    attention[:, 5:18] = 0.5
    many: dict[str, Any] = dict.fromkeys(("visual", "language", "total", "contribution", "beta", "gamma"), attention)
    types = np.full(attention.shape, 4, np.uint8)
    found = features(measured(**many, visual_attention=attention, types=types), (), ["summary"])
    assert found.values["summary"][:, -1].tolist() == [0.5] * STEPS


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6, 7, 8, 11, STEPS])  # no word is cut in two
def test_online_features_equal_those_of_the_complete_answer(steps: int) -> None:
    whole = features(measured(), WORDS)
    so_far = features(prefix(measured(), steps), [own for own in WORDS if own.stop <= steps])
    for name in FAMILIES:
        np.testing.assert_array_equal(so_far.values[name], whole.values[name][:steps])


def test_place_in_the_answer() -> None:
    assert column("position", "step").tolist() == list(range(STEPS))
    assert column("position", "words before").tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert column("position", "objects before").tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2]


def test_earlier_mentions() -> None:
    logprobs = -np.arange(STEPS, dtype=np.float32)
    new = column("mention", "new")
    assert [bool(x) for x in new] == [step not in (7, 10) for step in range(STEPS)]
    assert column("mention", "mentions before")[[2, 4, 7, 10]].tolist() == [0, 0, 1, 2]
    for how, expected in (("first", -2), ("mean", -4.5), ("lowest", -7)):
        found = column("mention", f"logprob {how} earlier", logprobs=logprobs)
        assert found[10] == expected
        assert found[2] == found[3] == 0
    assert column("mention", "logprob if new", logprobs=logprobs)[[4, 7]].tolist() == [-4, 0]


def test_many_earlier_mentions_count_as_three() -> None:
    found = features(measured(), [word("cat", step) for step in range(6)], ["mention"])
    assert found.values["mention"][:6, 1].tolist() == [0, 1, 2, 3, 3, 3]


def test_visual_share_of_a_head() -> None:
    visual = np.full((STEPS, LAYERS, HEADS), 0.3, np.float32)
    language = visual.copy()
    visual[0, 1, 2], language[0, 1, 2] = 0.6, -0.2
    visual[1], language[1] = 0.0, 0.0
    found = column("share", "visual share 1.2", visual=visual, language=language)
    assert found[0] == pytest.approx(1.0, abs=1e-3)
    assert found[1] == 0
    assert found[2] == 0


def test_drift_of_synergy_heads() -> None:
    shape = (STEPS, LAYERS, HEADS)
    visual, language = np.full(shape, 0.4, np.float32), np.full(shape, 0.4, np.float32)
    types = np.full(shape, 4, np.uint8)
    visual[3], language[3] = 0.2, 0.6
    types[3, 0, 0], visual[3, 0, 0] = 2, 9.0  # not a synergy head
    types[5] = 3
    told: dict[str, Any] = {"visual": visual, "language": language, "types": types}
    share, drift = column("summary", "α_vis", **told), column("summary", "drift", **told)
    assert share[:5] == pytest.approx([0.5, 0.5, 0.5, 0.25, 0.5])
    assert np.isnan(share[5])
    assert drift[:4] == pytest.approx([0, 0, 0, 0.25 - 1.75 / 4])
    assert column("summary", "language", **told)[5] == 1


def test_heads_that_were_not_measured_are_missing() -> None:
    nothing = np.full((STEPS, LAYERS, HEADS), np.nan, np.float32)
    heads: dict[str, Any] = dict.fromkeys(("visual", "language", "total", "visual_attention"), nothing)
    hidden: dict[str, Any] = dict.fromkeys(("similarity", "agreement"), np.full((STEPS, 3, 3), np.nan, np.float32))
    unknown = np.full((STEPS, LAYERS, HEADS), 255, np.uint8)
    found = features(measured(**heads, **hidden, types=unknown), WORDS)
    for name in FAMILIES:
        assert np.isnan(found.values[name]).all() == (name not in TEXT)


def test_an_answer_without_object_words_or_without_tokens() -> None:
    assert features(measured(), ()).values["mention"][:, 0].tolist() == [1] * STEPS
    assert features(measured(0), ()).matrix(whole(list(FAMILIES), LAYERS, HEADS)).shape[0] == 0
