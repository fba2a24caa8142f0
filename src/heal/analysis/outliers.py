"""Values far below the others: the σ rule, safe against rounding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.extras import optional

ROUNDING = 1e-5
"""Values closer to their mean than this share of it are equal: fp32 totals err by 2e-6 of themselves, and by 2e-5 at
worst, where attention scores are in the hundreds."""


def far_below(
    values: Float[Tensor, "*batch heads"], sigma: float, yeo_johnson: bool = False
) -> Bool[Tensor, "*batch heads"]:
    """value < mean − σ·std along the last axis; NaN is left out. σ = ∞: none.

    std is that of the population: these are all the heads there are. Equal values have no outliers, also when their
    mean or their last digits say otherwise.
    """
    if sigma == float("inf"):
        return torch.zeros_like(values, dtype=torch.bool)
    values = values.double()  # a mean of equal fp32 numbers is that number
    judged = normalised(values) if yeo_johnson else values
    mean = judged.nanmean(-1, keepdim=True)
    std = (judged - mean).square().nanmean(-1, keepdim=True).sqrt()
    centre = values.nanmean(-1, keepdim=True)
    return (judged < mean - sigma * std) & (centre - values > ROUNDING * centre.abs())


def normalised(values: Float[Tensor, "*batch heads"]) -> Float[Tensor, "*batch heads"]:
    """Yeo–Johnson, fitted along the last axis: makes skewed values nearly normal before a σ rule."""
    with optional():
        from scipy.stats import yeojohnson

    flat = values.reshape(-1, values.shape[-1]).double().cpu()
    rows = []
    for row in flat:
        finite = row.isfinite()
        out = row.clone()
        if int(finite.sum()) > 2 and float(row[finite].std()) > 0:
            # unit scale first: the fit is ill-conditioned on values that differ in the fifth decimal
            unit = (row[finite] - row[finite].mean()) / row[finite].std()
            out[finite] = torch.from_numpy(yeojohnson(unit.numpy())[0])
        rows.append(out)
    return torch.stack(rows).reshape(values.shape).to(values.device, values.dtype)
