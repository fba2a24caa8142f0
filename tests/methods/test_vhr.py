"""VHR: the selected heads, their amplification, and the options."""

import math

import numpy as np
import pytest
import torch

from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import VHR, parse
from heal.methods.vhr import reacting_heads
from tests import zoo
from tests.methods import slow
from tests.methods.agreement import NAMES, assert_agrees


@pytest.mark.parametrize("name", [*NAMES, "gemma3"])
def test_agrees_with_two_passes_layer_by_layer(name: str) -> None:
    assert_agrees(slow.vhr, name, VHR(layers=(0, 1, 2)))


@pytest.mark.parametrize(
    "method",
    [VHR(alpha=0.5, layers=(1,)), VHR(alpha=3.0, layers=(0, 2), outliers=False), VHR(layers=(2,))],
    ids=["softer", "louder", "last layer"],
)
def test_options_agree_with_two_passes(method: VHR) -> None:
    assert_agrees(slow.vhr, "llava", method)


@pytest.mark.parametrize("outliers", [True, False])
@pytest.mark.parametrize("heads", [5, 8, 32])
def test_chosen_heads(heads: int, outliers: bool) -> None:
    """At several scales, so that the outlier rule applies to some of them."""
    rng = np.random.default_rng(0)
    differ = 0
    for scale in (0.05, 1.0, 5.0) * 4:
        seen, blind = scale * rng.standard_normal((2, 3, heads, 4))
        blind[0, 0] *= 10  # large divergence and large output
        found = reacting_heads(torch.from_numpy(seen).float(), torch.from_numpy(blind).float(), outliers)
        for row in range(3):
            expected = slow.chosen_heads(seen[row], blind[row], outliers)
            assert found[row].nonzero().flatten().tolist() == expected
            differ += expected != slow.chosen_heads(seen[row], blind[row], not outliers)
    assert 0 < differ < 36


def test_half_of_the_heads_are_chosen() -> None:
    blind = torch.zeros(1, 6, 2)
    seen = torch.tensor([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]).view(1, 6, 1).expand(1, 6, 2)
    assert reacting_heads(seen, blind, False).tolist() == [[False, False, False, True, True, True]]


def test_no_head_is_chosen_if_none_reacts() -> None:
    blind = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    rounded = blind * (1 + 1e-7 * torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(1)))
    assert not reacting_heads(blind, blind, True).any()
    assert not reacting_heads(rounded, blind, True).any()


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (32, {1, *range(18, 32)}),
        (40, {1, *range(22, 40)}),
        (28, {1, *range(16, 28)}),
        (3, {1, 2}),
        (1, {0}),
    ],
)
def test_default_layers(count: int, expected: set[int]) -> None:
    assert VHR().chosen_layers(count) == expected


def test_layers_beyond_the_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="layers names layer 3, but the model has 3"):
        VHR(layers=(0, 3)).runtime(Layout.of(zoo.build("llava")), trace=False)


def test_parse() -> None:
    assert parse("vhr:alpha=3,layers=1+18-20,outliers=false") == VHR(
        alpha=3.0, layers=(1, 18, 19, 20), outliers=False
    )


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.0},
        {"alpha": -1.0},
        {"alpha": math.nan},
        {"alpha": math.inf},
        {"layers": ()},
        {"layers": (0, -1)},
    ],
    ids=str,
)
def test_wrong_value_is_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} "):
        VHR(**options)
