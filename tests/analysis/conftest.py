"""Small attention problems, and a simple reference implementation of attention in numpy (double precision)."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import settings

from heal.analysis.counterfactual import Attended
from heal.analysis.noise import Noise
from heal.analysis.split import Regions

LETTERS = "VLN"
"""A row is a string with one of these letters per position. All other characters are padding."""

CPU = torch.device("cpu")


def examples(number: int) -> settings:
    """Deterministic hypothesis settings without a deadline."""
    return settings(deadline=None, derandomize=True, max_examples=number)


def noise(seed: int = 0) -> Noise:
    return Noise(seed, CPU)


def masks_of(patterns: Sequence[str], groups: int = 2) -> torch.Tensor:
    return torch.tensor([[[c == name for c in row] for name in LETTERS[:groups]] for row in patterns])


def attended(
    patterns: Sequence[str],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 8,
    groups: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Attended:
    """Random query, keys and values. Keys and values have a non-zero mean, and padding contains garbage."""
    generator = torch.Generator().manual_seed(seed)
    rows, positions = len(patterns), len(patterns[0])
    query = torch.randn(rows, heads, dim, generator=generator)
    key, value = (
        torch.randn(rows, kv_heads, positions, dim, generator=generator)
        + torch.randn(rows, kv_heads, 1, dim, generator=generator)
        for _ in range(2)
    )
    masks = masks_of(patterns, groups)
    padding = ~masks.any(1)[:, None, :, None]
    key, value = key.masked_fill(padding, 77.0), value.masked_fill(padding, -99.0)
    return Attended(query.to(dtype), key.to(dtype), value.to(dtype), Regions.of(masks), dim**-0.5)


def where(pattern: str, letters: str) -> list[int]:
    return [j for j, c in enumerate(pattern) if c in letters]


def plain(query: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> tuple[np.ndarray, float]:
    """Softmax attention of one query over the given positions, and the logarithm of its normaliser."""
    if len(keys) == 0:
        return np.zeros(values.shape[-1]), -np.inf
    scores = keys @ query * scale
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum(), float(np.log(weights.sum()) + scores.max())


def cell(at: Attended, row: int, head: int) -> tuple[np.ndarray, ...]:
    """Query, keys and values that one query head of one row sees, in double precision."""
    kv = head // (at.query.shape[1] // at.key.shape[1])
    return tuple(t.double().numpy() for t in (at.query[row, head], at.key[row, kv], at.value[row, kv]))


def sim(a: np.ndarray, b: np.ndarray) -> float:
    """(1 + cos)/2. The cosine of a zero vector is 0."""
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return (1 + (float(a @ b) / norms if norms > 0 else 0.0)) / 2
