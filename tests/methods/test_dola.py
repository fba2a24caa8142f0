"""DoLa: candidates, divergence, formula and options."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch.testing import assert_close

from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import DoLa, parse
from heal.methods.dola import disagreement
from tests import zoo
from tests.methods import slow
from tests.methods.agreement import NAMES, assert_agrees

ALL = (0, 1, 2)


@pytest.mark.parametrize("name", [*NAMES, "gemma3"])
def test_hidden_states_of_a_whole_pass(name: str) -> None:
    assert_agrees(slow.dola, name, DoLa(layers=ALL))


@pytest.mark.parametrize(
    "method",
    [
        DoLa(layers=(2,), strength=0.5, relative_top=0.0),
        DoLa(layers=(0,), relative_top=0.9),
        DoLa(layers=ALL, divergence="release"),
        DoLa(layers=ALL, strength=0.0),
    ],
    ids=["one layer", "embedding", "release", "plausible only"],
)
def test_options_against_hidden_states(method: DoLa) -> None:
    assert_agrees(slow.dola, "llava", method)


def test_each_row_has_its_own_layer() -> None:
    """The released code uses one layer for the whole batch."""
    last = torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log()
    early = torch.tensor([[[0.1, 0.9], [0.9, 0.1]], [[0.9, 0.1], [0.1, 0.9]]]).log()
    assert disagreement(last, early, "js").argmax(0).tolist() == [0, 1]


def test_divergence_by_hand() -> None:
    p, q = (0.5, 0.25, 0.25), (0.1, 0.1, 0.8)
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]

    def kl(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))

    last, early = torch.tensor([p]).log(), torch.tensor([[q]]).log()
    assert_close(disagreement(last, early, "js"), torch.tensor([[(kl(p, m) + kl(q, m)) / 2]]))
    assert_close(disagreement(last, early, "release"), torch.tensor([[(kl(m, p) + kl(m, q)) / 2]]))
    assert_close(disagreement(last, last[None], "js"), torch.zeros(1, 1))


def test_divergence_of_the_paper_is_bounded_and_that_of_the_release_is_not() -> None:
    last, early = torch.tensor([[0.0, -60.0]]), torch.tensor([[[-60.0, 0.0]]])
    assert float(disagreement(last, early, "js")) == pytest.approx(math.log(2))
    assert float(disagreement(last, early, "release")) > math.log(2)


# ── candidates ───────────────────────────────────────────────────────────────────────────────────────────


def layout_of(layers: int, tied: bool = False) -> Layout:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    name, heads = ("paligemma", 1) if tied else ("llava", 2)
    return Layout.of(zoo.build(name, num_hidden_layers=layers, num_key_value_heads=heads, **sizes))


@pytest.mark.parametrize(
    ("count", "tied", "low", "high"),
    [
        (32, False, range(0, 16, 2), range(16, 32, 2)),
        (32, True, range(2, 16, 2), range(16, 32, 2)),
        (28, False, range(0, 14, 2), range(14, 28, 2)),
        (40, False, range(0, 20, 2), range(20, 40, 2)),
        (42, False, range(0, 20, 2), range(22, 42, 2)),
        (42, True, range(2, 20, 2), range(22, 42, 2)),
    ],
)
def test_candidates(count: int, tied: bool, low: range, high: range) -> None:
    layout = layout_of(count, tied)
    assert DoLa().candidates(layout) == (*low,)
    assert DoLa(bucket="high").candidates(layout) == (*high,)
    assert DoLa(bucket="all").candidates(layout) == (*low, *high)
    assert DoLa(layers=(3, 5)).candidates(layout) == (3, 5)


def test_tied_embeddings_are_detected_in_the_weights() -> None:
    """The configuration is not used: some models have the flag only in their text configuration."""
    for name in zoo.NAMES:
        model = zoo.build(name)
        tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        if tied:
            with pytest.raises(ConfigError, match="no candidate layers in the low bucket"):
                DoLa().candidates(Layout.of(model))
        else:
            assert DoLa().candidates(Layout.of(model)) == (0,)
        model.config.tie_word_embeddings = not tied
        assert 0 not in DoLa(bucket="high").candidates(Layout.of(model))
        assert (0 in DoLa(bucket="all").candidates(Layout.of(model))) == (not tied)


def test_layers_beyond_the_model_are_refused() -> None:
    layout = Layout.of(zoo.build("llava"))
    with pytest.raises(ConfigError, match=r"layers names layer 3, but the model has 3 layers \(0 to 2\)"):
        DoLa(layers=(1, 3)).runtime(layout, trace=False)


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────


def test_parse() -> None:
    assert parse("dola:bucket=high,relative_top=0") == DoLa(bucket="high", relative_top=0.0)
    assert parse("dola:layers=0+2-4,divergence=release") == DoLa(layers=(0, 2, 3, 4), divergence="release")


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize(
    "options",
    [
        {"bucket": "middle"},
        {"divergence": "kl"},
        {"strength": -1.0},
        {"strength": math.nan},
        {"strength": math.inf},
        {"relative_top": -0.1},
        {"relative_top": 1.5},
        {"layers": ()},
        {"layers": (-1,)},
    ],
    ids=str,
)
def test_wrong_value_is_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} "):
        DoLa(**options)
