"""Counterfactual attention: attention over one modality after its keys and values were replaced by noise.

There are two implementations. The closed form never creates noise keys: for i.i.d. Gaussian keys, the scores are
i.i.d. normal, and given the weights, the weighted noise values are one normal vector. It is exact in distribution.
`materialised_partials` creates the noise tensors as the paper does. It is the test oracle, and the only way for
distributions whose scores have no closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.moments import MASKED_GROUPS, Moments
from heal.analysis.noise import Noise
from heal.analysis.split import (
    Partial,
    Regions,
    Split,
    attention_scores,
    capped,
    group,
    split_attention,
    split_stacked,
    weighted_values,
)
from heal.errors import ConfigError

Masking = Literal["expected", "gaussian", "zero", "uniform", "swap"]
Covariance = Literal["diagonal", "full"]
MASKINGS: tuple[str, ...] = get_args(Masking)
COVARIANCES: tuple[str, ...] = get_args(Covariance)


@dataclass(frozen=True)
class Attended:
    """One query position and the cached keys and values: the input of every counterfactual."""

    query: Float[Tensor, "rows heads dim"]
    key: Float[Tensor, "rows kv_heads positions dim"]
    value: Float[Tensor, "rows kv_heads positions dim"]
    regions: Regions
    scale: float
    softcap: float | None = None
    """Scores s become softcap·tanh(s/softcap), in real and counterfactual attention."""

    def scores(self) -> Float[Tensor, "rows kv_heads group positions"]:
        """The scores before the softmax."""
        return capped(attention_scores(self.query, self.key, self.scale), self.softcap)

    @cached_property
    def real(self) -> Split:
        """Attention over each position group, computed once."""
        return split_stacked(self.query, self.key, self.value, self.regions, self.scale, self.softcap)

    @cached_property
    def _partials(self) -> list[Partial]:
        return self.real.partials()

    def split(self) -> list[Partial]:
        """`real` as one partial for each group."""
        return self._partials

    @property
    def known_split(self) -> list[Partial] | None:
        """The split if it was computed before."""
        return self._partials if "real" in vars(self) else None


def noise_partials(
    at: Attended, moments: Moments, masking: Masking, noise: Noise, covariance: Covariance = "diagonal"
) -> list[Partial]:
    """The counterfactual visual and language partials, by the cheapest exact implementation."""
    if masking == "zero":
        return [_zero(at, moments, name) for name in range(MASKED_GROUPS)]
    if masking == "gaussian" and covariance == "diagonal":
        return _gaussian(at, moments, noise)
    if masking == "gaussian":
        return [_gaussian_full(at, moments, name, noise) for name in range(MASKED_GROUPS)]
    return materialised_partials(at, moments, masking, noise, covariance)


def _zero(at: Attended, moments: Moments, name: int) -> Partial:
    count = moments.count[:, name, None].expand(-1, at.query.shape[1])
    return Partial(torch.zeros_like(at.query, dtype=torch.float32), count.log())


def _gaussian(at: Attended, moments: Moments, noise: Noise) -> list[Partial]:
    draw = GaussianDraw.of(at, noise)
    return gaussian_partials(at.query, at.scale, moments.mean, moments.squared, draw, at.softcap)


@dataclass(frozen=True)
class GaussianDraw:
    """The random numbers of one Gaussian draw, and the number of positions in each group."""

    samples: Float[Tensor, "groups heads dim"]
    scores: tuple[Float[Tensor, "heads visual"], Float[Tensor, "heads language"]]
    units: tuple[float | Tensor, float | Tensor]
    """1/√n, as [rows, 1] if rows differ."""
    beyond: tuple[Bool[Tensor, "rows visual"] | None, Bool[Tensor, "rows language"] | None]
    """Draws beyond the number of positions of a row. They are not used."""

    @classmethod
    def of(cls, at: Attended, noise: Noise) -> GaussianDraw:
        _, heads, dim = at.query.shape
        samples = noise.normal((MASKED_GROUPS, heads), dim, MASKED_GROUPS)
        scores, units, beyond = [], [], []
        for name in range(MASKED_GROUPS):
            longest, even = at.regions.longest(name), at.regions.even(name)
            scores.append(noise.normal((heads,), max(longest, 1), name))
            units.append(_inverse_root(at.regions, name, at.query.device))
            beyond.append(None if even and longest else _beyond(at.regions, name, at.query.device))
        return cls(samples, (scores[0], scores[1]), (units[0], units[1]), (beyond[0], beyond[1]))


def _inverse_root(regions: Regions, name: int, device: torch.device) -> float | Tensor:
    if regions.even(name):
        return max(regions.counts[0][name], 1) ** -0.5
    return torch.tensor([[max(row[name], 1) ** -0.5] for row in regions.counts], device=device)


def _beyond(regions: Regions, name: int, device: torch.device) -> Bool[Tensor, "rows longest"]:
    count = torch.tensor([row[name] for row in regions.counts], device=device)
    return torch.arange(max(regions.longest(name), 1), device=device) >= count[:, None]


def gaussian_partials(
    query: Float[Tensor, "rows heads dim"],
    scale: float,
    mean: Float[Tensor, "rows groups kv_heads two dim"],
    squared: Float[Tensor, "rows groups kv_heads two dim"],
    draw: GaussianDraw,
    softcap: float | None = None,
) -> list[Partial]:
    """The counterfactual partials of both groups, from the moments of keys and values and one draw."""
    _, heads, _ = query.shape
    grouped = group(query.float() * scale, mean.shape[2])
    mean_key, mean_value = mean.unbind(3)
    squared_key, squared_value = squared.unbind(3)  # n times the variance: divided by n at the end
    centre = torch.matmul(grouped, mean_key.permute(0, 2, 3, 1)).flatten(1, 2)
    spread = torch.matmul(grouped.square(), squared_key.permute(0, 2, 3, 1)).flatten(1, 2).sqrt()
    values = _per_query_head(squared_value.sqrt(), heads) * draw.samples
    means = _per_query_head(mean_value, heads)
    partials = []
    for name, (normals, unit, beyond) in enumerate(zip(draw.scores, draw.units, draw.beyond, strict=True)):
        lse, concentration = _weights(centre[..., name], spread[..., name] * unit, normals, beyond, softcap)
        value = torch.addcmul(means[:, name], values[:, name], (concentration * unit).unsqueeze(-1))
        partials.append(Partial(value, lse))
    return partials


def _gaussian_full(at: Attended, moments: Moments, name: int, noise: Noise) -> Partial:
    """Full covariance, with one more pass over V.

    qᵀΣ_K q is the variance of the real scores, and Xᵀg/√n with normal g has the covariance of X.
    """
    heads = at.query.shape[1]
    mask = at.regions.masks[:, name, None, None]
    count = moments.count[:, name]
    n = count.clamp(min=1)[:, None, None, None]
    scores = attention_scores(at.query, at.key, at.scale).masked_fill(~mask, 0.0)
    centre = scores.sum(-1, keepdim=True) / n
    spread = (((scores - centre).square() * mask).sum(-1, keepdim=True) / n).sqrt()
    longest, even = at.regions.longest(name), at.regions.even(name)
    normals = noise.normal((heads,), max(longest, 1), name)
    beyond = None if even and longest else _beyond(at.regions, name, at.query.device)
    lse, concentration = _weights(centre.flatten(1), spread.flatten(1), normals, beyond, at.softcap)
    ordinal = (at.regions.masks[:, name].cumsum(-1) - 1).clamp(min=0)
    draw = noise.normal((heads,), at.regions.length, MASKED_GROUPS, name)[:, ordinal].transpose(0, 1)
    draw = draw.view(scores.shape) * mask
    mean = moments.mean[:, name, :, 1].unsqueeze(2)
    sample = (weighted_values(draw, at.value) - draw.sum(-1, keepdim=True) * mean) / n.sqrt()
    value = _per_query_head(mean.squeeze(2), heads) + concentration.unsqueeze(-1) * sample.flatten(1, 2)
    return Partial(value, lse)


def _weights(
    centre: Tensor, spread: Tensor, normals: Tensor, beyond: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """log Σw and √Σw²/Σw of w_j = exp(cap(centre + spread·ε_j)), with one draw per position of the row."""
    scores = spread.unsqueeze(-1) * normals
    if softcap is not None:  # without a cap, the centre is a common factor of all weights
        scores, centre = capped(centre.unsqueeze(-1) + scores, softcap), torch.zeros_like(centre)
    if beyond is not None:
        scores = scores.masked_fill(beyond[:, None], -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    # the largest weight is exp(largest score)/Σ and at least 1/n, so its logarithm is finite
    total, concentration = scores.amax(-1) - weights.amax(-1).log(), torch.linalg.vector_norm(weights, dim=-1)
    if beyond is not None:
        empty = beyond.all(-1, keepdim=True)
        total, concentration = total.masked_fill(empty, -torch.inf), concentration.masked_fill(empty, 0.0)
    return total + centre, concentration


def _per_query_head(states: Float[Tensor, "*groups kv_heads dim"], heads: int) -> Float[Tensor, "*groups heads dim"]:
    return states.repeat_interleave(heads // states.shape[-2], dim=-2) if states.shape[-2] != heads else states


def materialised_partials(
    at: Attended, moments: Moments, masking: Masking, noise: Noise, covariance: Covariance = "diagonal"
) -> list[Partial]:
    """The counterfactual partials with materialised noise keys and values."""
    key, value, regions = materialise(at, moments, masking, noise, covariance)
    return split_attention(at.query, key, value, regions, at.scale, at.softcap)[:MASKED_GROUPS]


def materialise(
    at: Attended, moments: Moments, masking: Masking, noise: Noise, covariance: Covariance = "diagonal"
) -> tuple[Tensor, Tensor, Regions]:
    """Noise keys and values for every visual and language position, and their position groups."""
    if masking == "swap":
        donor = swap_donor(at.query.shape[0])
        return at.key[donor], at.value[donor], at.regions.select(donor)
    key, value = at.key.float().clone(), at.value.float().clone()
    for name in range(MASKED_GROUPS):
        mask = at.regions.masks[:, name, None, :, None]
        for which, states in enumerate((key, value)):
            fake = _fake(states, moments, name, which, at.regions, masking, noise, covariance)
            states.copy_(torch.where(mask, fake, states))
    return key, value, at.regions


def _fake(
    states: Tensor,
    moments: Moments,
    name: int,
    which: int,
    regions: Regions,
    masking: Masking,
    noise: Noise,
    covariance: Covariance,
) -> Tensor:
    if masking == "zero":
        return torch.zeros_like(states)
    _, kv_heads, length, dim = states.shape
    mean = moments.mean[:, name, :, which].unsqueeze(2)
    # the j-th position of the modality uses the j-th draw, independent of padding
    ordinal = (regions.masks[:, name].cumsum(-1) - 1).clamp(min=0)
    if covariance == "full" and masking == "gaussian":
        centred = (states - mean) * regions.masks[:, name, None, :, None]
        longest = max(regions.longest(name), 1)
        draws = torch.stack([noise.normal((kv_heads,), longest, name, which, j) for j in range(longest)], dim=1)
        n = moments.count[:, name, None, None, None].clamp(min=1)
        return mean + torch.matmul(_pairs(draws, ordinal), centred) / n.sqrt()
    draw = noise.normal if masking == "gaussian" else noise.uniform
    draws = draw((kv_heads, dim), length, name, which)[:, :, ordinal].permute(2, 0, 3, 1)
    return mean + moments.variance[:, name, :, which].sqrt().unsqueeze(2) * draws


def _pairs(draws: Tensor, ordinal: Tensor) -> Tensor:
    """Index draws [kv_heads, n, n] by each row's ordinals on both axes -> [rows, kv_heads, n, n]."""
    return torch.stack([draws[:, row][:, :, row] for row in ordinal])


def swap_donor(rows: int) -> list[int]:
    """Row r takes the tokens of row r − 1, and the first row those of the last."""
    if rows < 2:
        raise ConfigError(
            "swap needs another sample in the batch: give at least two rows, or use gaussian, zero or uniform"
        )
    return [rows - 1, *range(rows - 1)]
