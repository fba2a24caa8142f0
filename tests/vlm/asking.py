"""Images and prompts, a helper to ask, and a comparison of answers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heal import HEAL, VLM, Answer

NEW = 4
METHOD = HEAL(interval=2)
PICTURES = [np.random.default_rng(i).integers(0, 256, (48 + 8 * i, 64, 3), dtype=np.uint8) for i in range(3)]
PROMPTS = ["describe this image", "what color is the ball ?", "how many"]
PATCHES = 16  # placeholders of one image


def ask(vlm: VLM, **options: Any) -> Any:
    """An Answer, or a Stream with stream=True."""
    return vlm.generate(PICTURES[0], PROMPTS[0], **({"max_new_tokens": NEW} | options))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def assert_alike(one: Answer, other: Answer) -> None:
    assert (one.text, one.token_ids, one.finish) == (other.text, other.token_ids, other.finish)
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert one.prompt_tokens == other.prompt_tokens
