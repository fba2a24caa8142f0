import numpy as np
import pytest

from heal.analysis.taxonomy import HeadType
from heal.studies.agreement import ALPHA, LANGUAGE, VISUAL, agreement, drift, share, typed
from heal.studies.traces import TracedAnswer
from tests.studies.made import C, I, L, S, V, name, traced

U = int(HeadType.UNKNOWN)
END = [[U, U, U, U]]


def answer(*steps, id="a", **more):
    return TracedAnswer.of(traced(id, [*([step] for step in steps), END], **more))


def by_id(*answers):
    return {a.id: typed(a) for a in answers}


def test_agreement_by_hand():
    first = by_id(answer([S, S, V, L], [S, S, C, I]))
    second = by_id(answer([S, V, V, L], [S, S, S, C]))
    found = agreement(first, second)
    assert found.same.value == pytest.approx(100 * 5 / 8)
    # pairs: S with S 3 and with V 1, V with V, L with L, C with S, I with C
    chance = (4 * 4 + 1 * 2 + 1 * 1 + 1 * 1 + 1 * 0) / 64
    assert found.kappa.value == pytest.approx((5 / 8 - chance) / (1 - chance))
    assert found.redundant.value == pytest.approx(100 * 6 / 8)
    split = (1 * 1 + 7 * 7) / 64
    assert found.redundant_kappa.value == pytest.approx((6 / 8 - split) / (1 - split))
    assert (found.answers, found.different) == (1, 0)


def test_images_count_by_their_tokens():
    first = by_id(answer([S, S, S, S], id="a"), answer(*[[V, V, V, V]] * 3, id="b"))
    second = by_id(answer([S, S, S, S], id="a"), answer(*[[L, L, L, L]] * 3, id="b"))
    found = agreement(first, second)
    assert found.same.value == 25
    assert (found.same.low, found.same.high) == (0, 100)


def test_unknown_heads_and_other_tokens_are_left_out():
    same = agreement(by_id(answer([S, S, U, U])), by_id(answer([S, V, V, U])))
    assert same.same.value == 50
    other = answer([S, S, S, S], [S, S, S, S])
    longer = agreement(by_id(answer([S, S, S, S]), answer([S, S, S, S], id="b")), by_id(other))
    assert (longer.answers, longer.different) == (0, 1)
    assert np.isnan(longer.same.value)


def test_one_type_alone_has_no_kappa():
    found = agreement(by_id(answer([S, S, S, S])), by_id(answer([S, S, S, S])))
    assert found.same.value == found.redundant.value == 100
    assert np.isnan(found.kappa.value)
    assert np.isnan(found.redundant_kappa.value)


def test_share_of_a_type():
    answers = by_id(answer([S, S, V, U]), answer([L, S, V, L], id="b")).values()
    assert share(answers, HeadType.SYNERGY).value == pytest.approx(100 * 3 / 7)
    assert np.isnan(share([], HeadType.SYNERGY).value)


def test_mix_at_names_by_hand():
    visual, language = [[[0.4, 0.1, 0.5, 0.0]]] * 3, [[[0.1, 0.3, -0.1, 0.7]]] * 3
    names = [name(0), name(1, correct=False), name(2)]
    made = answer([S, S, V, L], [S, S, V, L], visual=visual, language=language, total=0.8, names=names)
    own = typed(made)
    assert [n.step for n in own.names] == [0, 1], "the last step has no types"
    assert own.names[0].values == pytest.approx(((0.8 + 0.25) / 2, 0.5 / 1.6, 0.4 / 1.6))
    only_first = np.array([[[S, V, V, L]]] * 2 + [END], np.uint8)
    assert typed(made, only_first).names[1].values == pytest.approx((0.8, 0.4 / 0.8, 0.1 / 0.8))
    none = np.array([[[V, V, V, L]]] * 2 + [END], np.uint8)
    assert np.isnan(typed(made, none).names[0].values).all()
    found = drift([own])
    assert found[ALPHA].difference.value == pytest.approx(0)
    assert found[VISUAL].mean_correct.value == pytest.approx(0.5 / 1.6)
    assert (found[LANGUAGE].correct, found[LANGUAGE].hallucinated) == (1, 1)
