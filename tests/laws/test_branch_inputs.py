"""The prompts that a branch can start with, on every architecture: other pixels, other features, no images."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from heal.engine.branches import Branch, Prompt
from heal.engine.generation import Generation
from heal.engine.runtime import Runtime
from heal.engine.state import State
from tests import zoo
from tests.laws.conftest import ROWS, WINDOW, generate, inputs_of, model_of, rows_of
from tests.laws.test_restart import WithRuntime

NEW = 3


class Twin(Runtime[State]):
    """Keeps its own logits and those of its branch."""

    changes_output = False

    def __init__(self, inputs: Callable[[Prompt], dict[str, Any]]) -> None:
        self.branches = (Branch("twin", inputs),)
        self.own: list[Tensor] = []
        self.twin: list[Tensor] = []

    def logits(self, generation: Generation, logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        self.own.append(logits.clone())
        self.twin.append(branches["twin"].clone())
        return logits


def both(name: str, inputs: Callable[[Prompt], dict[str, Any]], **options: Any) -> tuple[Tensor, Tensor]:
    runtime = Twin(inputs)
    generate(model_of(name), inputs_of(name, rows_of(name)), WithRuntime(runtime), new=NEW, **options)
    return torch.stack(runtime.own), torch.stack(runtime.twin)


SAME = {
    "unchanged": Prompt.unchanged,
    "the same pixels": lambda prompt: prompt.with_pixels(lambda name, pixels: pixels),
    "the same features": lambda prompt: prompt.with_features(lambda encoding, features: features),
}


@pytest.mark.parametrize("inputs", SAME)
@pytest.mark.parametrize("name", [*zoo.NAMES, WINDOW])
def test_the_same_prompt_has_the_same_logits(name: str, inputs: str) -> None:
    own, twin = both(name, SAME[inputs])
    assert_close(twin, own, rtol=0, atol=1e-5 * max(1.0, float(own.abs().max())))


@pytest.mark.parametrize("name", [*zoo.NAMES, WINDOW])
def test_other_features_change_rows_with_images(name: str) -> None:
    own, twin = both(name, lambda prompt: prompt.with_features(lambda encoding, features: features * 0.5))
    sees = [row.images > 0 for row in rows_of(name)]
    assert [bool(far > 1e-3) for far in (twin - own).abs().amax((0, 2))] == sees


@pytest.mark.parametrize("name", ["llava", "llava_next", "qwen2_5_vl", "idefics3"])
def test_features_are_repeated_for_beams(name: str) -> None:
    own, twin = both(name, SAME["the same features"], num_beams=2)
    assert own.shape[1] == 2 * len(rows_of(name)) >= 2 * len(ROWS[:3])
    assert_close(twin, own, rtol=0, atol=1e-5 * max(1.0, float(own.abs().max())))
