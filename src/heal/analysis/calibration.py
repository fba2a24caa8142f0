"""Calibration factors that restore the equilibrium of synergy heads."""

from __future__ import annotations

from functools import cache

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


def joint_factors(
    information: Float[Tensor, "rows heads three"],
    least: Float[Tensor, "rows heads"],
    targets: Float[Tensor, "*#heads two"],
    limit: float | None,
    one_sided: bool = False,
) -> Float[Tensor, "rows heads two"]:
    """`factors` as one tensor (β, γ), in few operations.

    `least` is what visual and language information must exceed: the dead zone for a head to calibrate, ∞ for all
    others. `targets` are (α, 1−α), for all heads or by head.
    """
    parts = information[..., :2]
    found = targets * parts.sum(-1, keepdim=True) / parts
    if limit is not None:
        found = found.clamp(1 / limit, limit)
    mixed = parts.amin(-1, keepdim=True) > least.unsqueeze(-1)
    if one_sided:  # more visual than the equilibrium: β < 1
        mixed = mixed & (found[..., :1] > 1)
    return torch.where(mixed, found, _one(found.dtype, found.device))


@cache
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor instead of a number, which every call would copy to the device."""
    return torch.ones((), dtype=dtype, device=device)
