"""Measurements, words and labelled words with known values."""

from typing import Any

import numpy as np

from heal.detect.features import TEXT, Features, features
from heal.detect.labels import Labelled
from heal.detect.words import ObjectWord
from heal.measured import Measured

STEPS, LAYERS, HEADS = 12, 2, 3
HEAD_ARRAYS = ("visual", "language", "total", "contribution", "beta", "gamma", "visual_attention")


def measured(steps: int = STEPS, seed: int = 0, **changes: Any) -> Measured:
    rng = np.random.default_rng(seed)
    shape = (steps, LAYERS, HEADS)
    found: dict[str, Any] = {name: rng.random(shape).astype(np.float32) for name in HEAD_ARRAYS}
    found |= {name: rng.random((steps, 3, 3)).astype(np.float32) for name in ("similarity", "agreement")}
    found |= {
        "types": rng.choice([1, 2, 3, 4], shape).astype(np.uint8),
        "refreshed": np.zeros(steps, bool),
        "logprobs": -rng.random(steps).astype(np.float32),
        "entropy": rng.random(steps).astype(np.float32),
        "margin": rng.random(steps).astype(np.float32),
        "alternatives": rng.integers(0, 100, (steps, 5)),
        "alternative_logprobs": -rng.random((steps, 5)).astype(np.float32),
    }
    return Measured(**(found | changes))


def prefix(whole: Measured, steps: int) -> Measured:
    """The first steps, as they are known while the answer is generated."""
    return Measured(**{name: array[:steps] for name, array in vars(whole).items()})


def word(category: str, start: int, stop: int | None = None) -> ObjectWord:
    return ObjectWord(category, category, start, start + 1 if stop is None else stop, (0, 0))


WORDS = (word("cat", 2), word("dog", 4, 6), word("cat", 7), word("cat", 10))


def labelled(words: int = 600, seed: int = 0, pull: float = 2.0) -> Labelled:
    """Words whose label depends on the log-probability, the attention of the first head, and chance."""
    rng = np.random.default_rng(seed)
    one = features(measured(words, seed), ())
    values = {name: rng.normal(size=own.shape).astype(np.float32) for name, own in one.values.items()}
    odds = -pull * values["probability"][:, 0] - pull * values["attention"][:, 0] - 1
    bad = rng.random(words) < 1 / (1 + np.exp(-odds))
    order = np.tile(np.arange(6), words // 6 + 1)[:words]
    return Labelled(
        Features(values, LAYERS, HEADS),
        picture=np.arange(words) // 6,
        step=order * 5,
        order=order,
        first=order % 2 == 0,
        hallucinated=bad,
        category=np.array(["cat", "dog"])[order % 2],
        captions=-(-words // 6),
    )


def text_only(whole: Labelled) -> Features:
    """As another method than HEAL gives them: no heads, no hidden states."""
    return Features(
        {name: own if name in TEXT else np.full_like(own, np.nan) for name, own in whole.features.values.items()},
        LAYERS,
        HEADS,
    )
