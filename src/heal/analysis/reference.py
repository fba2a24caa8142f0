"""The paper's batched implementation: the test oracle and the baseline of the speed benchmark.

Every step reads the whole cache for the moments, creates noise keys and values of the size of the cache, runs all
four counterfactual states through ordinary attention with repeated heads, scales copies of V, and passes an
H × (H·d) matrix through o_proj. It shares only the noise addresses, the distributions and the score formulas with the
fast path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from heal.analysis.contribution import Replacement, contribution, replaced
from heal.analysis.counterfactual import Attended, Covariance, Masking, materialise
from heal.analysis.information import HeadScores, Measure, difference_in_differences
from heal.analysis.moments import Moments
from heal.analysis.noise import Noise
from heal.analysis.split import LANGUAGE, NEUTRAL, TINY, VISUAL


def reference_scores(
    at: Attended, masking: Masking, noise: Noise, covariance: Covariance, measure: Measure
) -> HeadScores:
    """The four states as one batch of attention over [visual; language; neutral] keys."""
    real = (at.key, at.value, at.regions.masks)
    fake_key, fake_value, fake_regions = materialise(
        at, Moments.of(at.key, at.value, at.regions), masking, noise, covariance
    )
    fake = (fake_key, fake_value, fake_regions.masks)
    states = []
    for visual, language in ((real, real), (fake, real), (real, fake), (fake, fake)):
        parts = [(visual, VISUAL), (language, LANGUAGE)]
        parts += [(real, NEUTRAL)] if at.regions.group_count > NEUTRAL else []
        states.append(
            (
                torch.cat([world[0].float() for world, _ in parts], dim=2),
                torch.cat([world[1].float() for world, _ in parts], dim=2),
                torch.cat([world[2][:, name] for world, name in parts], dim=1),
            )
        )
    key, value, mask = (torch.cat([state[i] for state in states]) for i in range(3))
    outputs = attend(at.query.float().repeat(4, 1, 1), key, value, mask, at.scale, at.softcap)
    h11, h01, h10, h00 = outputs.chunk(4)
    return difference_in_differences(h11, h01, h10, h00, measure)


def reference_output(
    at: Attended, beta: Float[Tensor, "rows heads"], gamma: Float[Tensor, "rows heads"]
) -> Float[Tensor, "rows heads dim"]:
    """softmax(qKᵀ/√d) [βV_vis; γV_lang] with scaled copies of the values."""
    value = _repeated(at.value.float(), at.query.shape[1])
    masks = at.regions.masks[:, :, None, :, None]
    value = torch.where(masks[:, VISUAL], beta[..., None, None] * value, value)
    value = torch.where(masks[:, LANGUAGE], gamma[..., None, None] * value, value)
    return attend(at.query.float(), at.key.float(), value, at.regions.masks.any(1), at.scale, at.softcap)


def reference_contribution(
    outputs: Float[Tensor, "rows heads dim"],
    residual: Float[Tensor, "rows hidden"],
    added: Callable[[Tensor], Tensor],
    replacement: Replacement,
    noise: Noise,
    measure: Measure,
    norms: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "rows heads"]:
    """Replace each head in turn in the concatenated output. `added` maps it to the update of the residual stream.

    `norms`: ‖W_O^(i)‖² times the square of the layer's multiplier, for expected replacement.
    """
    rows, heads, dim = outputs.shape
    fake = replaced(outputs, replacement, noise)
    swapped = outputs.float()[:, None].repeat(1, heads, 1, 1)
    index = torch.arange(heads, device=outputs.device)
    swapped[:, index, index] = fake
    stream = residual.float() + added(outputs.reshape(rows, heads * dim)).float()
    moved = residual.float()[:, None] + added(swapped.view(rows, heads, heads * dim).to(outputs.dtype)).float()
    if norms is None:
        return contribution(stream, moved - stream[:, None], measure)
    return _expected_contribution(stream, moved, outputs.float().var(-1, correction=0) * norms, measure)


def _expected_contribution(stream: Tensor, moved: Tensor, random: Tensor, measure: Measure) -> Tensor:
    """1 − Sim(y, ỹ) where `moved` is the mean of ỹ and `random` the expected square of the noise around it."""
    stream, moved, random = stream.double()[:, None], moved.double(), random.double()
    squared = moved.square().sum(-1) + random
    cosine = (stream * moved).sum(-1) / (stream.norm(dim=-1) * squared.sqrt()).clamp(min=TINY)
    distance = ((moved - stream).square().sum(-1) + random).sqrt()
    l2 = torch.tanh(distance / (stream.norm(dim=-1) + squared.sqrt()).clamp(min=TINY) / 2)
    cosine = (1 - cosine) / 2
    return {"cosine": cosine, "l2": l2, "cosine+l2": (cosine + l2) / 2}[measure].float()


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None = None
) -> Tensor:
    """Plain softmax attention of one query with repeated heads."""
    heads = query.shape[1]
    key, value = _repeated(key, heads), _repeated(value, heads)
    scores = torch.matmul(key, query.unsqueeze(-1)).squeeze(-1) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    weights = weights.masked_fill(~mask.any(-1)[:, None, None], 0.0)
    return torch.matmul(weights.unsqueeze(2), value).squeeze(2)


def _repeated(states: Tensor, heads: int) -> Tensor:
    return states.repeat_interleave(heads // states.shape[1], dim=1)
