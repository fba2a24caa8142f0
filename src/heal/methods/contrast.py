"""Contrasts of next-token scores, as pure functions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def contrast(
    logits: Float[Tensor, "rows vocabulary"], other: Float[Tensor, "rows vocabulary"], strength: float
) -> Float[Tensor, "rows vocabulary"]:
    """(1 + a)·l − a·l′: away from what the other pass says."""
    return (1 + strength) * logits - strength * other


def plausible(
    scores: Float[Tensor, "rows vocabulary"], logits: Float[Tensor, "rows vocabulary"], share: float
) -> Float[Tensor, "rows vocabulary"]:
    """Only tokens that have at least `share` of the likeliest one's probability under `logits`; 0 keeps all."""
    if share <= 0:
        return scores
    least = logits.amax(-1, keepdim=True) + math.log(share)
    return scores.masked_fill(logits < least, -torch.inf)
