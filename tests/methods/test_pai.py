"""PAI: raised attention, text-only guidance, and its options."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from heal.analysis.counterfactual import Attended
from heal.analysis.split import VISUAL, Regions
from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import PAI, parse
from heal.methods.pai import raised_attention
from tests import zoo
from tests.methods import slow
from tests.methods.agreement import NAMES, assert_agrees, model_of, said

BOTH = PAI(alpha=0.5, gamma=1.5, start_layer=0)


@pytest.mark.parametrize("name", [*NAMES, "gemma3", "paligemma2"])
def test_agrees_with_the_slow_implementation_and_text_pass(name: str) -> None:
    assert_agrees(slow.pai, name, BOTH)


@pytest.mark.parametrize(
    "method",
    [
        PAI(alpha=0.5, gamma=1.0, start_layer=0),
        PAI(alpha=0.0, gamma=2.0, cutoff=0.0),
        PAI(start_layer=2),
        PAI(preset="release", start_layer=1, cutoff=0.5),
    ],
    ids=["attention only", "guidance only", "last layer", "release"],
)
def test_options_against_weights_by_hand(method: PAI) -> None:
    assert_agrees(slow.pai, "llava", method)


@contextmanager
def counted_keys(model: Any) -> Iterator[list[int]]:
    """The number of keys in each pass of the decoder."""
    seen: list[int] = []

    def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        seen.append(int(output.past_key_values.get_seq_length()))

    handle = model.get_decoder().register_forward_hook(hook, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def test_text_branch_has_its_own_short_cache() -> None:
    model, row = model_of("llava"), zoo.Row()
    with counted_keys(model) as keys:
        said("llava", BOTH, (row,))
    text = row.text_before + row.text_after
    assert keys == [text + 9, text, text + 10, text + 1, text + 11, text + 2]


def test_no_branch_without_guidance() -> None:
    with counted_keys(model_of("llava")) as keys:
        said("llava", PAI(alpha=0.5, gamma=1.0, start_layer=0), (zoo.Row(),))
    assert keys == [17, 18, 19]


def test_raised_attention_by_hand() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    visual = torch.tensor([[False, True, True, False, False]])
    seen = torch.tensor([[False, True, True, True, True]])
    regions = Regions.of(torch.stack([visual & seen, ~visual & seen], 1))
    assert VISUAL == 0
    out, rise = raised_attention(Attended(query, key, value, regions, 0.3), visual, seen, 0.7)
    for head in range(4):
        scores = [0.3 * float(query[0, head] @ key[0, head // 2, at]) for at in range(5)]
        assert float(rise[0, head]) == pytest.approx(0.7 * (abs(scores[1]) + abs(scores[2])) / 2, rel=1e-5)
        raised = [s + 0.7 * abs(s) if at in (1, 2) else s for at, s in enumerate(scores)]
        weights = [0.0, *(math.exp(s) for s in raised[1:])]
        expected = sum(w * value[0, head // 2, at] for at, w in enumerate(weights)) / sum(weights)
        assert_close(out[0, head], expected)


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────


def test_presets() -> None:
    assert (PAI().strength, PAI().guidance) == (0.5, 1.1)
    assert (PAI(preset="release").strength, PAI(preset="release").guidance) == (0.2, 1.1)
    assert (PAI(alpha=0.0, gamma=1.0).strength, PAI(alpha=0.0, gamma=1.0).guidance) == (0.0, 1.0)
    assert parse("pai:alpha=0.3,gamma=none,start_layer=4") == PAI(alpha=0.3, start_layer=4)


def test_start_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="start_layer names layer 3, but the model has 3 layers"):
        PAI(start_layer=3).runtime(Layout.of(model_of("llava")), trace=False)


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize(
    "options",
    [
        {"alpha": -0.1},
        {"alpha": math.nan},
        {"alpha": math.inf},
        {"gamma": 0.9},
        {"gamma": math.nan},
        {"gamma": math.inf},
        {"start_layer": -1},
        {"start_layer": 1.5},
        {"cutoff": 1.1},
        {"cutoff": -0.1},
        {"preset": "nonsense"},
    ],
    ids=str,
)
def test_wrong_value_is_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} "):
        PAI(**options)
