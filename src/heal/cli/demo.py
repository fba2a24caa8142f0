"""The demonstration that needs nothing: a picture made on the spot and a model made on the spot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heal.cli.analyze import print_map
from heal.cli.common import RANDOM, load
from heal.cli.run import describe

if TYPE_CHECKING:
    from heal.methods.base import Method


def demo(method: Method) -> None:
    """The plain answer, the method's answer, the head types, and the drift of the synergy heads."""
    vlm = load(RANDOM, "auto", None)
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    prompt = "describe this image"
    plain = vlm.generate(picture, prompt, trace=True, max_new_tokens=16)
    answer = vlm.generate(picture, prompt, method=method, trace=True, max_new_tokens=16)
    print(f"plain: {plain.text}")
    print(f"{method.name}:  {answer.text}")
    print(describe(answer, plain))
    print_map(answer.trace)
    for name, found in (("plain", plain), (method.name, answer)):
        drift = " ".join(f"{value:.2f}" for value in found.trace.mean_alpha())
        print(f"visual share of the synergy heads, token by token, {name}: {drift}")
