import numpy as np
import pytest

from heal import VLM
from heal.analysis.taxonomy import HeadType
from heal.methods import HEAL
from heal.studies.parts import Records
from heal.studies.retyping import types_with
from heal.studies.setup import Setup
from heal.studies.token_kinds import TokenKind
from heal.studies.traces import TracedAnswer, answers, own_types, plain_traces
from heal.world.mentions import mentions
from tests.studies.made import L, S, V, traced

UNKNOWN = int(HeadType.UNKNOWN)


@pytest.fixture(scope="module")
def vlm():
    return VLM.embedded()


@pytest.fixture(scope="module")
def measured(vlm):
    part = plain_traces(Setup(samples=2, max_new_tokens=30), "counter")
    assert part.name == "traces counter"
    return part, [TracedAnswer.of(one) for one in part.measure(vlm, part.samples)]


def test_the_answers_are_those_of_the_plain_model(vlm, measured):
    part, found = measured
    for sample, answer in zip(part.samples, found, strict=True):
        plain = vlm.generate(sample.image(), sample.prompt, max_new_tokens=30, do_sample=False)
        assert answer.facts["token_ids"] == list(plain.token_ids)
        assert "".join(answer.tokens) == answer.text
        assert (answer.id, answer.unit) == (sample.id, sample.unit)


def test_names_are_where_the_text_has_them(measured):
    for answer in measured[1]:
        found = mentions(answer.text)
        assert [name.category for name in answer.names] == [m.category for m in found]
        for name, mention in zip(answer.names, found, strict=True):
            written = "".join(answer.tokens[name.step : name.last + 1])
            assert answer.text[mention.start : mention.stop] in written
            assert set(answer.kinds[name.step : name.last + 1].tolist()) == {int(TokenKind.OBJECT)}
            assert name.correct == (name.category in answer.facts["objects"])


def test_types_at_a_token_come_from_its_own_scores(measured):
    """What the model found at each step is what the classification of the stored scores gives."""
    for answer in measured[1]:
        found = types_with(answer, HEAL())
        np.testing.assert_array_equal(found[:-1], answer.types[:-1])
        assert (answer.types[-1] == UNKNOWN).all()
        assert not (found == UNKNOWN).any()


def test_other_thresholds(measured):
    answer = measured[1][0]
    every = types_with(answer, HEAL(mad=float("inf")))
    mixed = (answer.visual > 1e-6) & (answer.language > 1e-6)
    np.testing.assert_array_equal(every == S, mixed)
    some = types_with(answer, HEAL(layers=(1, 2)))
    assert (some[:, [0, 3]] == UNKNOWN).all()
    assert not (some[:, 1:3] == UNKNOWN).any()


def test_types_in_effect_are_those_of_the_last_refresh():
    types = [[[kind]] for kind in (V, L, S, V, L, S)]
    answer = TracedAnswer.of(traced("a", types))
    assert answer.in_effect(1).ravel().tolist() == [V, V, L, S, V, L]
    # refreshes at 0, 2 and 4 act from 1, 3 and 5 on
    assert answer.in_effect(2).ravel().tolist() == [V, V, V, S, S, L]
    assert answer.in_effect(100).ravel().tolist() == [V] * 6


def test_types_in_effect_agree_with_a_trace_of_that_interval(vlm, measured):
    part, found = measured
    for sample, answer in zip(part.samples, found, strict=True):
        method = HEAL(calibrate=False, interval=4)
        trace = vlm.generate(
            sample.image(), sample.prompt, method=method, trace=True, max_new_tokens=30, do_sample=False
        ).trace
        same = answer.in_effect(4) == trace.types
        assert same.mean() > 0.999  # a batch of two and one row alone may differ in the last bit


def test_own_types():
    found = own_types(np.array([[[S]], [[S]], [[V]]], np.uint8))
    assert found.ravel().tolist() == [S, V, UNKNOWN]


def test_answers_of_records():
    records = Records.of([traced("a", [[[S]]]), traced("b", [[[V]]])])
    assert [answer.id for answer in answers(records)] == ["a", "b"]
