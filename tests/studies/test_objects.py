import numpy as np
import pytest

from heal import VLM
from heal.analysis.taxonomy import HeadType
from heal.studies.objects import describe, label, object_names
from heal.token_spans import token_spans
from heal.trace import Trace
from heal.world import World
from heal.world.mentions import mentions

TOKENS = (
    "The",
    " image",
    " shows",
    " a",
    " te",
    "ddy",
    " bear",
    ",",
    " two",
    " fork",
    "s",
    " and",
    " a",
    " fork",
    ".",
)


class Tokenizer:
    """Its tokens are those of an answer: the ids are their indices."""

    def __init__(self, tokens):
        self.tokens = tokens

    def decode(self, ids, clean_up_tokenization_spaces):
        return "".join(self.tokens[i] for i in ids)


def labelled(picture, tokens, objects):
    return label(picture, trace_of(tokens), Tokenizer(tokens), objects)


def trace_of(tokens):
    n = len(tokens)
    base = np.zeros((n, 1, 2), np.float32)
    step = np.arange(n, dtype=np.float32)[:, None, None]
    visual, language = base + step + 1, base + 1
    return Trace(
        visual=visual,
        language=language,
        synergy=base,
        total=visual + language,
        contribution=base,
        beta=base,
        gamma=base,
        types=np.full((n, 1, 2), HeadType.SYNERGY, np.uint8),
        refreshed=np.ones(n, bool),
        token_ids=np.arange(n),
        tokens=tokens,
        text="".join(tokens),
        config={},
        seed=0,
        versions={},
    )


def test_step_of_a_name_is_its_first_token():
    found = mentions("".join(TOKENS))
    assert [m.category for m in found] == ["teddy bear", "fork", "fork"]
    names = object_names(found, token_spans(Tokenizer(TOKENS), range(len(TOKENS))), frozenset({"fork"}))
    assert [(name.step, name.last) for name in names] == [(4, 6), (9, 10), (13, 13)]


def test_labels_and_their_head_scores():
    bear, forks, fork = labelled(7, TOKENS, frozenset({"fork"}))
    assert (bear.category, bear.correct, bear.step, bear.order, bear.first) == ("teddy bear", False, 4, 0, True)
    assert (forks.correct, forks.step, forks.first) == (True, 9, True)
    assert (fork.correct, fork.step, fork.order, fork.first) == (True, 13, 2, False)
    assert {t.picture for t in (bear, forks, fork)} == {7}
    np.testing.assert_allclose(bear.alpha_vis, 5 / 6)
    np.testing.assert_allclose(fork.total, 15)


def test_answer_without_names():
    assert labelled(0, ("Nothing", "."), frozenset({"fork"})) == []


@pytest.mark.parametrize("batch", [2, 3])
def test_views_are_described_in_batches_and_in_order(batch, monkeypatch):
    vlm = VLM.random()
    asked = []
    original = vlm.generate

    def generate(images, prompts, **options):
        asked.append(len(images))
        return original(images, prompts, **options)

    monkeypatch.setattr(vlm, "generate", generate)
    world = World(0, "validation")
    found = list(describe(vlm, (world.scene(i) for i in range(5)), batch=batch, max_new_tokens=4))
    assert len(found) == 5
    assert asked == [2, 2, 1] if batch == 2 else [3, 2]
