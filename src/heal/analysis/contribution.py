"""Which heads matter at all: replace one head's output by noise and see how far the residual stream moves."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.counterfactual import swap_donor
from heal.analysis.information import Measure, dissimilarity
from heal.analysis.noise import Noise
from heal.errors import ConfigError

Replacement = Literal["gaussian", "zero", "uniform", "cauchy", "swap", "none"]
REPLACEMENTS: tuple[str, ...] = get_args(Replacement)
ROWS = 512


def replaced(
    outputs: Float[Tensor, "rows heads dim"], replacement: Replacement, noise: Noise
) -> Float[Tensor, "rows heads dim"]:
    """Noise in the place of each head's output, with the mean and variance of the entries of that output."""
    if replacement == "none":
        raise ConfigError("replacement none means that nothing is replaced: skip the stage")
    outputs = outputs.float()
    _, heads, dim = outputs.shape
    if replacement == "zero":
        return torch.zeros_like(outputs)
    if replacement == "swap":
        return outputs[swap_donor(outputs.shape[0])]
    if replacement == "cauchy":
        median = _median(outputs)
        return median + _median((outputs - median).abs()) * noise.cauchy((heads,), dim)
    draw = noise.normal if replacement == "gaussian" else noise.uniform
    spread = outputs.std(-1, keepdim=True, correction=0)
    return outputs.mean(-1, keepdim=True) + spread * draw((heads,), dim)


def _median(x: Tensor) -> Tensor:
    """The middle, or the mean of the two middles (torch.median takes the lower one)."""
    return x.quantile(0.5, dim=-1, keepdim=True)


def project_heads(
    outputs: Float[Tensor, "rows heads dim"], weight: Float[Tensor, "hidden heads_dim"]
) -> Float[Tensor, "rows heads hidden"]:
    """W_O^(i) u_i for every head i: together one product of the size of o_proj."""
    _, heads, dim = outputs.shape
    by_head = outputs.transpose(0, 1).to(weight.dtype)
    # a head's columns are far apart in memory: in blocks of rows the pages are still at hand for the next head
    blocks = [torch.bmm(by_head, rows.view(-1, heads, dim).permute(1, 2, 0)) for rows in weight.split(ROWS)]
    return torch.cat(blocks, dim=-1).transpose(0, 1).float()


def contribution(
    stream: Float[Tensor, "rows hidden"],
    shifts: Float[Tensor, "rows heads hidden"],
    measure: Measure = "cosine",
) -> Float[Tensor, "rows heads"]:
    """I_i = 1 − Sim(y, y + shift_i), shift_i = W_O^(i)(õ_i − o_i)."""
    stream = stream.float().unsqueeze(1)
    return dissimilarity(stream, stream + shifts, measure)


def causally_redundant(
    contributions: Float[Tensor, "rows layers heads"], sigma: float = 3.0, yeo_johnson: bool = False
) -> Bool[Tensor, "rows layers heads"]:
    """I_i < mean − σ·std over the heads of the layer. σ = ∞: none.

    std is that of the population: these are all the heads there are. With at most σ²+1 heads in a layer no
    head can be that far from the mean, so nothing is ever redundant by this rule.
    """
    if sigma == float("inf") or contributions.shape[-1] <= sigma**2 + 1:
        return torch.zeros_like(contributions, dtype=torch.bool)
    values = normalised(contributions) if yeo_johnson else contributions
    mean = values.mean(-1, keepdim=True)
    return values < mean - sigma * values.std(-1, keepdim=True, correction=0)


def normalised(values: Float[Tensor, "*batch heads"]) -> Float[Tensor, "*batch heads"]:
    """Yeo–Johnson, fitted along the last axis: makes skewed values nearly normal before a σ rule."""
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
