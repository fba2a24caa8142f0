"""How uncertain a next-token distribution is."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def entropy_and_margin(logprobs: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows two"]:
    """The entropy in nats, and the probability of the likeliest token minus that of the second."""
    probabilities = logprobs.exp()
    best = probabilities.topk(min(2, probabilities.shape[-1]), dim=-1).values
    margin = best[..., 0] - (best[..., 1] if best.shape[-1] > 1 else 0.0)
    return torch.stack([torch.special.entr(probabilities).sum(-1), margin], dim=-1)
