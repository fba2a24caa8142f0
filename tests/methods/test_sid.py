"""SID: the contrast, the visual tokens that the second pass keeps, and the options."""

from typing import Any

import pytest
import torch

from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import SID
from heal.methods.sid import least_attended
from tests import zoo
from tests.methods import slow_attention
from tests.methods.agreement import NAMES, assert_agrees

WEIGHTS = torch.tensor([[0.1, 0.3, 0.05, 0.2, 0.05, 0.3], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]])
VISUAL = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0]]).bool()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "method",
    [SID(), SID(preset="release", beta=0.0), SID(layer=1, keep=3, alpha=2.5)],
    ids=["paper", "release", "own"],
)
def test_agrees_with_the_slow_implementation(name: str, method: SID) -> None:
    assert_agrees(slow_attention.sid, name, method)


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (1, [[2], [1]]),  # ties go to the earlier position
        (2, [[2, 4], [1, 2]]),
        (3, [[2, 3, 4], [1, 2]]),  # a row with fewer visual tokens keeps all of them
        (None, [[2], [1]]),  # 100 of every 576, at least one
    ],
)
def test_least_attended_visual_tokens(keep: int | None, expected: list[list[int]]) -> None:
    kept = least_attended(WEIGHTS, VISUAL, keep)
    assert [row.nonzero().flatten().tolist() for row in kept] == expected


def test_default_share_is_100_of_576() -> None:
    kept = least_attended(torch.rand(1, 600), torch.arange(600)[None] < 576, None)
    assert int(kept.sum()) == 100


def test_nothing_is_kept_without_an_image() -> None:
    assert not least_attended(WEIGHTS, torch.zeros_like(VISUAL), None).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha must be 0 or more"),
        ({"beta": 1.5}, "beta must lie between 0 and 1"),
        ({"layer": 0}, "layer must be a whole number of 1 or more"),
        ({"keep": 0}, "keep must be a whole number of 1 or more"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SID(**options)


def test_layer_beyond_the_model() -> None:
    with pytest.raises(ConfigError, match="layer names layer 3, but the model has 3 layers"):
        SID(layer=3).runtime(Layout.of(zoo.build("llava")), trace=False)


def test_presets() -> None:
    assert (SID().strength, SID(preset="release").strength, SID(alpha=0.3).strength) == (1.0, 0.5, 0.3)
