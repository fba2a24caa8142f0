import numpy as np
import pytest

from heal import HEAL, VLM
from heal.errors import ConfigError, HealWarning
from heal.methods import VCD, Beam, Combined, parse


@pytest.fixture(scope="module")
def vlm():
    return VLM.random()


def ask(vlm, method, **options):
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    return vlm.generate(picture, "describe", method=method, max_new_tokens=6, **options)


@pytest.mark.parametrize("method", [HEAL(alpha=0.3), VCD()], ids=lambda m: m.name)
def test_a_combined_method_equals_the_method_with_num_beams(vlm, method):
    together = ask(vlm, Combined((method, Beam(3))))
    by_hand = ask(vlm, method, num_beams=3, length_penalty=1.0)
    assert together.token_ids == by_hand.token_ids
    assert together.logprobs == by_hand.logprobs
    assert together.fired == by_hand.fired
    assert together.fired


def test_beam_alone_equals_generate_with_num_beams(vlm):
    found = ask(vlm, Beam(3))
    assert found.token_ids == ask(vlm, None, num_beams=3).token_ids
    assert found.fired.sizes == {"beams": 2.0}
    assert found.token_ids != ask(vlm, None).token_ids
    assert 0 < found.fired.steps == found.fired.changes < len(found.token_ids)
    with pytest.warns(HealWarning, match="one beam is greedy decoding"):
        greedy = ask(vlm, Beam(1))
    assert greedy.token_ids == ask(vlm, None).token_ids
    assert not greedy.fired
    assert greedy.fired.reason == "one beam is greedy decoding"


def test_a_trace_of_both(vlm):
    answer = ask(vlm, parse("heal:alpha=0.3,seed=4+beam:beams=2"), trace=True)
    assert answer.trace.steps == len(answer.token_ids)
    assert answer.trace.config["method"] == "heal+beam"
    assert answer.trace.config["beam"] == {"beams": 2, "length_penalty": 1.0}
    assert answer.trace.seed == 4


def test_as_text():
    assert parse("heal:alpha=0.5+beam:beams=3") == Combined((HEAL(alpha=0.5), Beam(3)))
    assert parse("beam+heal:layers=0+2-3") == Combined((Beam(), HEAL(layers=(0, 2, 3))))
    assert parse("heal:layers=0+2-3") == HEAL(layers=(0, 2, 3))


@pytest.mark.parametrize("text", ["heal+vcd", "beam+beam", "heal+vcd+beam"])
def test_invalid_combinations_are_rejected(text):
    with pytest.raises(ConfigError, match=r"combine exactly one|named twice"):
        parse(text)
