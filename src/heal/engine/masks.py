"""Convert the attention masks of transformers to one form."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor


def as_bool(mask: Tensor) -> Tensor:
    """True where a query may attend, from a boolean, 0/1 or additive mask."""
    if mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point():
        return mask > torch.finfo(mask.dtype).min / 2
    return mask != 0


def valid_positions(mask: Any, like: Tensor, past: int = 0) -> Bool[Tensor, "rows positions"]:
    """True at tokens of a prompt, False at padding.

    `like` is a tensor [rows, positions, …] of that prompt, `past` the number of cached positions before it.
    """
    if isinstance(mask, dict):
        mask = mask.get("full_attention", next(iter(mask.values()), None))
    if mask is None:
        return torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
    if mask.dim() == 4:
        mask = mask[:, 0, -1]
    return as_bool(mask[:, past : past + like.shape[1]])
