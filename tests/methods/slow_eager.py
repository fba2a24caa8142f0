"""Attention in float64, head by head, with scores or weights that a test changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "slow"
ScoreChange = Callable[[int, np.ndarray], np.ndarray]
"""Gets a layer and the scores [queries, keys] of one head."""
WeightChange = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
"""Gets a layer, its weights [heads, queries, keys] and the keys that each query sees."""


class _Changes(NamedTuple):
    scores: ScoreChange
    weights: WeightChange


_current: list[_Changes] = []


def _eager(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    layer, changes = module.layer_idx, _current[-1]
    q, k, v = (x[0].double().numpy() for x in (query, key, value))
    seen = attention_mask[0, 0].numpy() == 0
    weights = np.zeros((len(q), q.shape[1], k.shape[1]))
    for head in range(len(q)):
        scores = q[head] @ k[head * len(k) // len(q)].T * scaling
        scores = changes.scores(layer, scores if softcap is None else softcap * np.tanh(scores / softcap))
        scores = np.where(seen, scores, -np.inf)
        weights[head] = np.exp(scores - scores.max(1, keepdims=True))
        weights[head] /= weights[head].sum(1, keepdims=True)
    weights = changes.weights(layer, weights, seen)
    out = np.stack([weights[head] @ v[head * len(k) // len(q)] for head in range(len(q))], 1)
    return torch.from_numpy(out)[None].to(query.dtype), None


AttentionInterface.register(NAME, _eager)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def changed_attention(
    model: Any,
    scores: ScoreChange = lambda layer, scores: scores,
    weights: WeightChange = lambda layer, weights, seen: weights,
) -> Iterator[None]:
    before = model.config.get_text_config()._attn_implementation
    model.set_attn_implementation({"text_config": NAME})
    _current.append(_Changes(scores, weights))
    try:
        yield
    finally:
        _current.pop()
        model.set_attn_implementation({"text_config": before})
