"""VAR: sink tokens, image-centric heads, and the redistributed attention."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig, MistralConfig, Qwen2VLTextConfig, Qwen3Config

from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import VAR
from heal.methods.var import redistributed, sink_tokens
from tests import zoo
from tests.known import known
from tests.laws.conftest import generate, inputs_of, model_of, run
from tests.methods import slow_attention
from tests.methods.agreement import NAMES, assert_agrees
from tests.zoo import Row

#          sink  text  image sink  image image
VISUAL = torch.tensor([[False, False, True, True, True]])
SINKS = torch.tensor([[True, False, True, False, False]])
QUERIES = torch.tensor([[True]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "method",
    [
        VAR(threshold=2.0),
        VAR(threshold=1.5, rho=0.2, least=0.1, strength=1.0),
        VAR(threshold=1.5, rho=0.0, dimensions=(3, 17)),
    ],
    ids=["defaults", "thresholds", "dimensions"],
)
def test_agrees_with_the_slow_implementation(name: str, method: VAR) -> None:
    assert_agrees(slow_attention.var, name, method)


def test_a_prompt_that_ends_with_the_image_is_changed_from_the_second_token_on() -> None:
    """No prompt query follows the image, so only generated tokens are changed."""
    rows, method = (Row(text_after=0),), VAR(strength=0.9, rho=0.0, least=0.0, threshold=2.0)
    out = generate(model_of("llava"), inputs_of("llava", rows), method)
    plain = run("llava", rows=rows)
    assert torch.equal(out.logits[:, 0], plain.logits[:, 0])
    assert not torch.equal(out.logits[:, 1], plain.logits[:, 1])
    assert known(out.fired).steps == len(out.logits[0]) - 1


def row(*weights: float) -> torch.Tensor:
    return torch.tensor(weights).view(1, 1, 1, -1)


def test_attention_moves_to_the_other_visual_tokens_in_proportion() -> None:
    new, moved = redistributed(row(0.4, 0.1, 0.2, 0.1, 0.2), VISUAL, SINKS, QUERIES, VAR(strength=0.5))
    # 0.5 · (0.4 + 0.2) = 0.3 is divided 1:2 between the last two tokens
    assert_close(new, row(0.2, 0.1, 0.1, 0.2, 0.4))
    assert_close(moved, torch.full((1, 1, 1), 0.3))
    assert_close(new.sum(), torch.tensor(1.0))


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ((0.5, 0.4, 0.0, 0.05, 0.05), {}),  # only 0.1 of the attention is visual
        ((0.1, 0.1, 0.7, 0.05, 0.05), {}),  # most visual attention is on the sink
        ((0.4, 0.1, 0.2, 0.1, 0.2), {"strength": 0.0}),
        ((0.0, 0.5, 0.0, 0.2, 0.3), {}),  # nothing is on sinks
        ((0.4, 0.1, 0.5, 0.0, 0.0), {"rho": 0.0}),  # there is no other visual token
    ],
)
def test_unchanged_heads(weights: tuple[float, ...], options: dict[str, Any]) -> None:
    new, moved = redistributed(row(*weights), VISUAL, SINKS, QUERIES, VAR(**options))
    assert torch.equal(new, row(*weights))
    assert not moved.any()


def test_only_the_given_queries_are_changed() -> None:
    weights = row(0.4, 0.1, 0.2, 0.1, 0.2)
    new, _ = redistributed(weights, VISUAL, SINKS, ~QUERIES, VAR())
    assert torch.equal(new, weights)


def test_sink_tokens() -> None:
    hidden = torch.ones(1, 3, 100)
    hidden[0, 1, 7] = -500.0  # about 10 times the root mean square: √(25 · 10⁴ / 100) ≈ 50
    found = [sink_tokens(hidden, torch.tensor([dims]), 9.0).tolist() for dims in ([7, 8], [8, 9])]
    assert found == [[[False, True, False]], [[False, False, False]]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": 2.0}, "strength must lie between 0 and 1"),
        ({"rho": -0.1}, "rho must lie between 0 and 1"),
        ({"threshold": -1.0}, "threshold must be 0 or more"),
        ({"dimensions": ()}, "at least one entry"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VAR(**options)


def test_dimensions_of_a_model() -> None:
    layout = Layout.of(zoo.build("llava"))
    assert VAR().sink_dimensions(layout) is None
    assert VAR(dimensions=(3,)).sink_dimensions(layout) == (3,)
    with pytest.raises(ConfigError, match="names 64, but hidden states have 64"):
        VAR(dimensions=(64,)).sink_dimensions(layout)


@pytest.mark.parametrize(
    ("text", "dimensions"),
    [
        (LlamaConfig(hidden_size=4096, num_attention_heads=32, num_key_value_heads=32), (1415, 2533)),
        (LlamaConfig(hidden_size=5120, num_attention_heads=40, num_key_value_heads=40), (2100, 4743)),
        (LlamaConfig(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8), None),  # Llama 3
        (MistralConfig(hidden_size=4096), None),
        (Qwen2VLTextConfig(hidden_size=3584, num_attention_heads=28, num_key_value_heads=4), (458, 2570)),
        (Qwen3Config(hidden_size=4096), None),
    ],
    ids=["vicuna-7b", "vicuna-13b", "llama-3", "mistral", "qwen2-vl", "qwen3"],
)
def test_published_dimensions_belong_to_their_language_model(text: Any, dimensions: tuple[int, ...] | None) -> None:
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    layout = replace(Layout.of(model_of("llava")), model=model)
    assert VAR().sink_dimensions(layout) == dimensions
    assert VAR(dimensions=(7,)).sink_dimensions(layout) == (7,)
