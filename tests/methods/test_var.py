"""VAR: sink tokens, image-centric heads, and where the attention goes."""

import pytest
import torch
from torch.testing import assert_close

from heal.engine.layout import Layout
from heal.errors import ConfigError
from heal.methods import VAR
from heal.methods.var import redistributed, sink_tokens
from tests import zoo

#          sink  text  image sink  image image
VISUAL = torch.tensor([[False, False, True, True, True]])
SINKS = torch.tensor([[True, False, True, False, False]])
ASKING = torch.tensor([[True]])


def row(*weights: float) -> torch.Tensor:
    return torch.tensor(weights).view(1, 1, 1, -1)


def test_sinks_give_to_the_other_visual_tokens_in_proportion() -> None:
    new, moved = redistributed(row(0.4, 0.1, 0.2, 0.1, 0.2), VISUAL, SINKS, ASKING, VAR(strength=0.5))
    # 0.5 · (0.4 + 0.2) = 0.3 goes to the last two, one part and two parts
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
        ((0.4, 0.1, 0.5, 0.0, 0.0), {"rho": 0.0}),  # nowhere to go
    ],
)
def test_heads_that_are_left_alone(weights: tuple[float, ...], options: dict[str, float]) -> None:
    new, moved = redistributed(row(*weights), VISUAL, SINKS, ASKING, VAR(**options))
    assert torch.equal(new, row(*weights))
    assert not moved.any()


def test_queries_that_are_not_text_behind_an_image_are_left_alone() -> None:
    weights = row(0.4, 0.1, 0.2, 0.1, 0.2)
    new, _ = redistributed(weights, VISUAL, SINKS, ~ASKING, VAR())
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
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VAR(**options)


def test_dimensions_of_a_model() -> None:
    layout = Layout.of(zoo.build("llava"))
    assert VAR().sink_dimensions(layout) is None
    assert VAR(dimensions=(3,)).sink_dimensions(layout) == (3,)
    with pytest.raises(ConfigError, match="names 64, but hidden states have 64"):
        VAR(dimensions=(64,)).sink_dimensions(layout)
