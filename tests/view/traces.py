"""Traces and data for the tests of the view, created without a model."""

from typing import Any

import numpy as np
from PIL import Image

from heal.trace import Trace
from heal.trace_parts import Patches, TracedImage, VisualSpan

WORDS = (" The", " image", " shows", " a", " blue", " kite", " and", " two", " d", "ogs", ".", "</s>")
HOSTILE = '</script><script>alert("x")</script><!--<script> & \u2028 ]]> <img src=x onerror=alert(1)> \ud83d'


def trace(steps: int = 12, layers: int = 3, heads: int = 4, seed: int = 0, **changes: Any) -> Trace:
    """A trace with measured heads: types change every five steps, contributions are known at refreshes only."""
    rng = np.random.default_rng(seed)
    shape = (steps, layers, heads)
    fields: dict[str, Any] = {
        name: rng.normal(0.2, 0.3, shape).astype(np.float32) for name in ("visual", "language", "synergy")
    }
    fields["total"] = fields["visual"] + fields["language"] + fields["synergy"]
    fields |= {name: rng.uniform(0.5, 2, shape).astype(np.float32) for name in ("beta", "gamma", "contribution")}
    refreshed = np.arange(steps) % 5 == 0
    fields["contribution"][~refreshed] = np.nan
    kinds = rng.choice([0, 1, 2, 3, 4], (steps // 5 + 1, layers, heads)).astype(np.uint8)
    tokens = tuple(WORDS[i % len(WORDS)] for i in range(steps))
    fields |= {
        "types": np.ascontiguousarray(kinds[np.arange(steps) // 5]),
        "refreshed": refreshed,
        "token_ids": rng.integers(0, 100, steps),
        "tokens": tokens,
        "text": "".join(tokens).replace("</s>", "").strip(),
        "config": {"method": "heal", "model": "embedded", "equilibrium": 0.5, "calibrate": True, "interval": 5},
        "seed": 0,
        "versions": {"heal-mllm": "0.2.0"},
        "logprobs": -rng.random(steps).astype(np.float32),
        "alternatives": rng.integers(0, 100, (steps, 5)),
        "alternative_logprobs": -np.sort(rng.uniform(1, 5, (steps, 5)).astype(np.float32)),
        "alternative_tokens": tuple((" dog", " a", "s", "<b>", f" word{i}") for i in range(steps)),
        "prompt": "USER: <image>\nWhat is this? ASSISTANT:",
        "messages": ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},),
        "images": (TracedImage.of(Image.new("RGB", (40, 30), (30, 90, 200))),),
        "visual_positions": (VisualSpan(2, 6, 0),),
        "prompt_tokens": 12,
    }
    return Trace(**(fields | changes))


def patches(steps: int = 12, layers: int = 3, heads: int = 4, seed: int = 0) -> Patches:
    """Where the heads look on a grid of 2 × 3 patches."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 256, (steps, layers, heads, 6)).astype(np.uint8)
    return Patches(
        levels, rng.uniform(1e-4, 1e-3, (steps, layers, heads)).astype(np.float32), (2, 3), (0.25, 0, 0.75, 1)
    )


def plain(**changes: Any) -> Trace:
    config = {"method": "heal", "model": "embedded", "equilibrium": 0.5, "calibrate": False}
    unmeasured = np.full((12, 3, 4), np.nan, np.float32)
    own: dict[str, Any] = {"config": config, "beta": unmeasured, "gamma": unmeasured}
    return trace(seed=1, **(own | changes))
