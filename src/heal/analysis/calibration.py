"""Calibration factors that restore the equilibrium of synergy heads."""

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

    A head that is not mixed at this step (visual or language information is not positive) is unchanged. `limit`
    bounds both factors to [1/limit, limit]; None leaves them unbounded, as in the paper. With `one_sided`, heads that
    are more visual than the equilibrium are unchanged: only drift toward language is corrected.
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
