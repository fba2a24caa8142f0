"""Values far below the mean: the σ rule, robust against rounding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.extras import optional

ROUNDING = 1e-5
"""Values whose relative distance from the mean is smaller than this are equal. The relative error of fp32 totals is
2e-6, and at worst 2e-5 for attention scores in the hundreds."""


def far_below(
    values: Float[Tensor, "*batch heads"], sigma: float, yeo_johnson: bool = False
) -> Bool[Tensor, "*batch heads"]:
    """value < mean − σ·std along the last axis, ignoring NaN. σ = ∞: no value.

    std is the population standard deviation. Values that are equal up to rounding have no outliers.
    """
    if sigma == float("inf"):
        return torch.zeros_like(values, dtype=torch.bool)
    values = values.double()  # the mean of equal fp32 numbers is exact
    judged = normalised(values) if yeo_johnson else values
    mean = judged.nanmean(-1, keepdim=True)
    std = (judged - mean).square().nanmean(-1, keepdim=True).sqrt()
    centre = values.nanmean(-1, keepdim=True)
    return (judged < mean - sigma * std) & (centre - values > ROUNDING * centre.abs())


def normalised(values: Float[Tensor, "*batch heads"]) -> Float[Tensor, "*batch heads"]:
    """Yeo–Johnson transform fitted along the last axis, which makes skewed values nearly normal."""
    with optional():
        from scipy.stats import yeojohnson

    flat = values.reshape(-1, values.shape[-1]).double().cpu()
    rows = []
    for row in flat:
        finite = row.isfinite()
        out = row.clone()
        if int(finite.sum()) > 2 and float(row[finite].std()) > 0:
            # scale to unit variance first: the fit is ill-conditioned for values that differ in the fifth decimal
            unit = (row[finite] - row[finite].mean()) / row[finite].std()
            out[finite] = torch.from_numpy(yeojohnson(unit.numpy())[0])
        rows.append(out)
    return torch.stack(rows).reshape(values.shape).to(values.device, values.dtype)
