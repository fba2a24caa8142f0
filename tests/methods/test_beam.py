"""Beam search as a method, compared with a search without cache or tensors, and its options."""

import math

import numpy as np
import pytest
import torch

from heal.errors import ConfigError
from heal.methods import Beam, parse
from tests import zoo
from tests.methods import slow
from tests.methods.agreement import NEW, ROWS, model_of


def searched(name: str, row: zoo.Row, beams: int) -> tuple[list[int], float]:
    """The most likely answer with the given number of beams, and its log-probability per token."""
    model = model_of(name)
    batch = zoo.inputs(model, [row])
    hypotheses: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(NEW):
        longer = []
        for score, tokens in hypotheses:
            logits = slow.last_logits(model, slow.extended(model, batch, tokens))
            longer += [(score + gain, [*tokens, token]) for token, gain in enumerate(slow.log_softmax(logits))]
        hypotheses = sorted(longer, reverse=True)[:beams]
    score, tokens = hypotheses[0]
    return tokens, score / NEW


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.filterwarnings("ignore::heal.errors.HealWarning")
def test_likeliest_of_several_answers(name: str, beams: int) -> None:
    model = model_of(name)
    options = {"max_new_tokens": NEW, "return_dict_in_generate": True, "output_scores": True}
    with Beam(beams=beams).attach(model):
        out = model.generate(**zoo.inputs(model, list(ROWS)), **options)
    for index, row in enumerate(ROWS):
        tokens, score = searched(name, row, beams)
        assert out.sequences[index, -NEW:].tolist() == tokens
        if beams > 1:
            assert float(out.sequences_scores[index]) == pytest.approx(score, abs=1e-4)


def test_search_finds_likelier_answers_than_greedy() -> None:
    scores = np.array([[searched("llava", row, beams)[1] for row in ROWS] for beams in (1, 3)])
    assert (scores[1] >= scores[0] - 1e-9).all()


def test_length_penalty_is_passed_on() -> None:
    assert Beam(beams=4, length_penalty=0.5).generate_options() == {"num_beams": 4, "length_penalty": 0.5}
    assert Beam(beams=1, length_penalty=0.5).generate_options() == {"num_beams": 1}
    model = model_of("llava")
    batch = zoo.inputs(model, list(ROWS))
    options = {"max_new_tokens": 2, "return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**batch, **options, num_beams=2, length_penalty=3.0).sequences_scores
    with Beam(beams=2, length_penalty=3.0).attach(model):
        assert torch.equal(model.generate(**batch, **options).sequences_scores, expected)


def test_parse() -> None:
    assert parse("beam") == Beam(beams=5, length_penalty=1.0)
    assert parse("beam:beams=3,length_penalty=0.6") == Beam(beams=3, length_penalty=0.6)


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize(
    "options",
    [{"beams": 0}, {"beams": 2.5}, {"beams": -1}, {"length_penalty": math.nan}, {"length_penalty": math.inf}],
    ids=str,
)
def test_wrong_value_is_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} "):
        Beam(**options)
