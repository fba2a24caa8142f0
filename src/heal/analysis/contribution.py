"""Causal contribution of heads: replace a head's output by noise and measure how far the residual stream moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.counterfactual import swap_donor
from heal.analysis.information import Measure, dissimilarity
from heal.analysis.noise import Noise
from heal.analysis.outliers import far_below
from heal.analysis.split import TINY
from heal.errors import ConfigError

Replacement = Literal["expected", "gaussian", "zero", "uniform", "cauchy", "swap", "none"]
REPLACEMENTS: tuple[str, ...] = get_args(Replacement)
BLOCK = 512


def replaced(
    outputs: Float[Tensor, "rows heads dim"], replacement: Replacement, noise: Noise
) -> Float[Tensor, "rows heads dim"]:
    """Noise to replace each head's output, with the mean and variance of the entries of that output.

    Expected replacement is the mean alone; `Shift.random` is what the noise around it adds.
    """
    if replacement == "none":
        raise ConfigError("replacement none has no noise: skip the causal stage")
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
    if replacement == "expected":
        return outputs.mean(-1, keepdim=True).expand_as(outputs)
    spread = outputs.std(-1, keepdim=True, correction=0)
    return outputs.mean(-1, keepdim=True) + spread * draw((heads,), dim)


def squared_norms(weight: Float[Tensor, "hidden heads_dim"], heads: int) -> Float[Tensor, " heads"]:
    """‖W_O^(i)‖² of the columns of every head."""
    return torch.linalg.vector_norm(weight.float().unflatten(1, (heads, -1)), dim=(0, 2)).square()


def _median(x: Tensor) -> Tensor:
    """The mean of the two middle values if their number is even (torch.median returns the lower one)."""
    return x.quantile(0.5, dim=-1, keepdim=True)


def contribution(
    stream: Float[Tensor, "rows hidden"],
    shifts: Float[Tensor, "rows heads hidden"],
    measure: Measure = "cosine",
) -> Float[Tensor, "rows heads"]:
    """I_i = 1 − Sim(y, y + shift_i), shift_i = W_O^(i)(õ_i − o_i)."""
    stream = stream.float().unsqueeze(1)
    return dissimilarity(stream, stream + shifts, measure)


@dataclass(frozen=True, eq=False)
class Shift:
    """How the replacement moves each head's output."""

    moved: Float[Tensor, "rows heads dim"]
    """Replaced minus actual output, before o_proj. With expected replacement its mean over all draws."""
    random: Float[Tensor, "rows heads"] | None = None
    """E‖W_O^(i) ε‖² of the noise around this mean; it adds nothing to ⟨y, ỹ⟩ on average."""

    @classmethod
    def of(
        cls, outputs: Float[Tensor, "rows heads dim"], replacement: Replacement, noise: Noise, norms: Tensor | None
    ) -> Shift:
        """`norms`: ‖W_O^(i)‖² of every head, for expected replacement."""
        moved = replaced(outputs, replacement, noise) - outputs
        if replacement != "expected":
            return cls(moved)
        assert norms is not None
        return cls(moved, outputs.float().var(-1, correction=0) * norms)

    def times(self, multiplier: float) -> Shift:
        """For a layer that multiplies the output of o_proj."""
        if multiplier == 1:
            return self
        return Shift(self.moved * multiplier, None if self.random is None else self.random * multiplier**2)


def projected_contribution(
    stream: Float[Tensor, "rows hidden"],
    shift: Shift,
    weight: Float[Tensor, "hidden heads_dim"],
    measure: Measure = "cosine",
) -> Float[Tensor, "rows heads"]:
    """`contribution` with shift_i = W_O^(i) u_i, by one product of the size of o_proj. Shifts are not materialised.

    Only ⟨y, s⟩ and ‖s‖² of a shift s are needed, and both are sums over blocks of the hidden dimensions.
    """
    by_head = shift.moved.transpose(0, 1).to(weight.dtype)
    sums = _Sums(shift)
    for rows, y in zip(weight.split(BLOCK), stream.float().split(BLOCK, dim=-1), strict=True):
        sums.add(_by_head(by_head, rows).float(), y)
    return dissimilarity_of_shift(stream.float(), sums.along, sums.squared, measure)


def projection_and_contribution(
    residual: Float[Tensor, "rows hidden"],
    outputs: Float[Tensor, "rows heads dim"],
    shift: Shift,
    weight: Float[Tensor, "hidden heads_dim"],
    bias: Float[Tensor, "hidden"] | None = None,
    measure: Measure = "cosine",
    multiplier: float = 1.0,
) -> tuple[Float[Tensor, "rows hidden"], Float[Tensor, "rows heads"]]:
    """o_proj of the outputs and the contributions of the heads, in one read of the weights of o_proj.

    The stream is residual + multiplier · o_proj(outputs). With one row, reading weights dominates the time of a step,
    and a second read would dominate the cost of a refresh.
    """
    shift = shift.times(multiplier)
    by_head = torch.cat([outputs, shift.moved]).transpose(0, 1)
    sums, projected = _Sums(shift), []
    biases = weight.new_zeros(len(weight)) if bias is None else bias
    for rows, x, b in zip(weight.split(BLOCK), residual.split(BLOCK, dim=-1), biases.split(BLOCK), strict=True):
        own, shifts = _by_head(by_head, rows).chunk(2, dim=1)
        projected.append(own.sum(0).add_(b))
        sums.add(shifts, torch.add(x, projected[-1], alpha=multiplier))
    whole = torch.cat(projected, dim=-1)
    stream = torch.add(residual, whole, alpha=multiplier)
    return whole, dissimilarity_of_shift(stream, sums.along, sums.squared, measure)


def head_shifts(
    moved: Float[Tensor, "rows heads dim"], weight: Float[Tensor, "hidden heads_dim"]
) -> Float[Tensor, "rows heads hidden"]:
    """W_O^(i) u_i of every head, for layers that transform the output of o_proj before adding it."""
    return _by_head(moved.transpose(0, 1).to(weight.dtype), weight).transpose(0, 1).float()


def _by_head(vectors: Float[Tensor, "heads n dim"], rows: Float[Tensor, "block heads_dim"]) -> Tensor:
    """W^(i) u for the vectors of every head, [heads, n, block].

    The columns of a head are far apart in memory. Blocks of rows keep the pages in cache for the next head.
    """
    heads, _, dim = vectors.shape
    return torch.bmm(vectors, rows.view(-1, heads, dim).permute(1, 2, 0))


class _Sums:
    """⟨y, s⟩ and ‖s‖² of every head's shift s, [rows, heads], accumulated over blocks of the hidden dimensions."""

    def __init__(self, shift: Shift) -> None:
        self.along, self.squared = shift.moved.new_zeros(2, *shift.moved.shape[:2], dtype=torch.float32)
        if shift.random is not None:
            self.squared += shift.random

    def add(self, shifts: Float[Tensor, "heads rows block"], y: Float[Tensor, "rows block"]) -> None:
        shifts = shifts.transpose(0, 1)
        self.along += torch.matmul(shifts, y.unsqueeze(-1)).squeeze(-1)
        self.squared += torch.linalg.vector_norm(shifts, dim=-1).square()


def dissimilarity_of_shift(stream: Tensor, along: Tensor, squared: Tensor, measure: Measure) -> Tensor:
    """1 − Sim(y, y + s) from ⟨y, s⟩ and ‖s‖², in units of ‖y‖, without cancellation for small shifts."""
    norm = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
    unit = norm.clamp(min=TINY)
    forward = 1 + along / unit / unit
    size = squared.sqrt() / unit
    across = (size.square() - (forward - 1).square()).clamp(min=0)
    new = (forward.square() + across).sqrt()
    # (1 − cos)/2 = (n − f)/2n = a/(2n(n + f)) with n² = f² + a
    turned = torch.where(forward > 0, across / (new + forward).clamp(min=TINY), new - forward)
    cosine = (turned / new.clamp(min=TINY) / 2).masked_fill((norm == 0) | (new == 0), 0.5)
    if measure == "cosine":
        return cosine
    l2 = torch.tanh(torch.where(norm == 0, (squared > 0).float(), size / (1 + new)) / 2)
    return l2 if measure == "l2" else (cosine + l2) / 2


def causally_redundant(
    contributions: Float[Tensor, "rows layers heads"], sigma: float = 3.0, yeo_johnson: bool = False
) -> Bool[Tensor, "rows layers heads"]:
    """I_i < mean − σ·std over the heads of the layer. σ = ∞: no head is redundant.

    With at most σ² + 1 heads in a layer, no value can be that far from the mean.
    """
    if contributions.shape[-1] <= sigma**2 + 1:
        return torch.zeros_like(contributions, dtype=torch.bool)
    return far_below(contributions, sigma, yeo_johnson)
