"""From the mix of a synergy head to the factors that bring it back to equilibrium."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def factors(
    visual: Float[Tensor, "*heads"],
    language: Float[Tensor, "*heads"],
    calibrated: Bool[Tensor, "*heads"],
    alpha: float | Float[Tensor, "*#heads"],
    limit: float | None,
    one_sided: bool = False,
) -> tuple[Float[Tensor, "*heads"], Float[Tensor, "*heads"]]:
    """β = α/α_vis and γ = (1−α)/α_lang for the heads to calibrate, 1 for all others.

    A head that carries no mix at this step (one of the two not positive) is left alone, and `limit` bounds
    both factors to [1/limit, limit]; None leaves them unbounded, as in the paper. `one_sided` leaves heads alone
    that are more visual than the equilibrium: only what drifted toward language is brought back.
    """
    mixed = calibrated & (visual > 0) & (language > 0)
    total = visual + language
    if one_sided:
        mixed = mixed & (visual < alpha * total)
    beta = torch.where(mixed, alpha * total / visual, 1.0)
    gamma = torch.where(mixed, (1 - alpha) * total / language, 1.0)
    if limit is not None:
        beta, gamma = beta.clamp(1 / limit, limit), gamma.clamp(1 / limit, limit)
    return beta, gamma
