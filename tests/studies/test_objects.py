import numpy as np
import pytest

from heal import VLM
from heal.analysis.taxonomy import HeadType
from heal.studies.objects import describe, label, steps_of
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
    assert steps_of(TOKENS, found) == [4, 9, 13]


def test_labels_and_their_head_scores():
    bear, forks, fork = label(7, trace_of(TOKENS), frozenset({"fork"}))
    assert (bear.category, bear.correct, bear.step, bear.order, bear.first) == ("teddy bear", False, 4, 0, True)
    assert (forks.correct, forks.step, forks.first) == (True, 9, True)
    assert (fork.correct, fork.step, fork.order, fork.first) == (True, 13, 2, False)
    assert {t.picture for t in (bear, forks, fork)} == {7}
    np.testing.assert_allclose(bear.alpha_vis, 5 / 6)
    np.testing.assert_allclose(fork.total, 15)


def test_answer_without_names():
    assert label(0, trace_of(("Nothing", ".")), frozenset({"fork"})) == []


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
