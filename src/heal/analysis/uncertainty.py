"""How uncertain a next-token distribution is, and which tokens it favours."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from heal.analysis.alternatives import ALTERNATIVES, NONE

LIKELY = ALTERNATIVES + 1
FACTS = 2 + 2 * LIKELY


def distribution_facts(logprobs: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows facts"]:
    """The entropy, the margin, the ids of the LIKELY likeliest tokens, and their log-probabilities.

    They are one tensor, so that they move between rows and devices together. Ids are exact: float32 has every integer
    up to 16,777,216.
    """
    size = logprobs.shape[-1]
    best = logprobs.float().topk(min(LIKELY, size), dim=-1)
    likely = best.values.exp()
    margin = likely[..., 0] - (likely[..., 1] if size > 1 else 0.0)
    spread = torch.special.entr(logprobs.exp()).sum(-1).float()
    space = (0, LIKELY - best.values.shape[-1])
    known = [pad(best.indices.float(), space, value=NONE), pad(best.values, space, value=torch.nan)]
    return torch.cat([torch.stack([spread, margin], dim=-1), *known], dim=-1)
