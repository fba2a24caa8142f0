"""Teacher forcing gives the log-probabilities of the generation itself."""

import numpy as np
import pytest

from heal import VLM
from heal.studies.perplexity import Written, answer_ids, answer_logprobs, scored
from heal.studies.setup import Setup

SETUP = Setup(samples=3)


@pytest.fixture(scope="module")
def vlm():
    return VLM.embedded()


def asked():
    samples = SETUP.captions("natural")
    prompts = [samples[0].prompt, "What is this?", samples[2].prompt]  # of different lengths: with padding
    return [s.image() for s in samples], prompts


def test_a_greedy_answer_has_its_own_log_probabilities(vlm):
    images, prompts = asked()
    answers = vlm.generate(images, prompts, max_new_tokens=40, do_sample=False)
    request = vlm.request(images, prompts)
    found = answer_logprobs(vlm, request, [answer.token_ids for answer in answers])
    for answer, own in zip(answers, found, strict=True):
        np.testing.assert_allclose(own, answer.logprobs, atol=2e-4)
    written = [Written(answer.text, answer.finish == "stop") for answer in answers]
    ids = answer_ids(vlm.tokenizer, request.source.texts, written)
    assert ids == [list(answer.token_ids) for answer in answers]
    assert {answer.finish for answer in answers} == {"stop", "length"}


def test_a_row_alone_equals_the_row_in_a_batch(vlm):
    images, prompts = asked()
    answers = [[5, 6, 7], [], [9]]
    together = answer_logprobs(vlm, vlm.request(images, prompts), answers)
    assert [len(own) for own in together] == [3, 0, 1]
    alone = answer_logprobs(vlm, vlm.request(images[:1], prompts[:1]), answers[:1])
    np.testing.assert_allclose(alone[0], together[0], atol=2e-4)
    assert answer_logprobs(vlm, vlm.request(images[:1], prompts[:1]), [[]]) == [[]]


def test_records_have_one_sum_per_method(vlm):
    samples = SETUP.captions("natural")
    texts = {s.id: Written("There is a dog.", True) for s in samples}
    other = {samples[0].id: Written("There is a dog.", False)}
    part = scored("p", samples, {"plain": texts, "other": other}, rows=2, tokens=9)
    first, second = part.measure(vlm, part.samples[:2])
    assert set(first.facts) == {"plain", "other"}
    assert set(second.facts) == {"plain"}
    (all_of_it, tokens), (without_end, fewer) = first.facts["plain"], first.facts["other"]
    assert tokens == fewer + 1
    assert all_of_it > without_end > 0
    assert part.options != scored("p", samples, {"plain": texts}, rows=2, tokens=9).options


class Words:
    """A tokenizer of words in which the last word of the prompt may merge with the answer."""

    eos_token_id = 99

    def __call__(self, text):
        return {"input_ids": [hash(word) for word in text.split(" ")]}


def test_the_space_before_an_answer():
    (ended, cut) = answer_ids(Words(), ["ask:", "ask:\n"], [Written("a b", True), Written("a b", False)])
    assert ended == [hash("a"), hash("b"), 99]
    assert cut == [hash("ask:\na"), hash("b")]
