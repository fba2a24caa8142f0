"""Decoding steps of one layer, and the step in torch: the form that the kernels must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heal.analysis.calibration import factors
from heal.analysis.counterfactual import _per_query_head
from heal.analysis.information import HeadScores
from heal.analysis.moments import MASKED_GROUPS, Moments
from heal.analysis.split import LOWEST, Partial, Regions, group, merge, shares, split_attention
from heal.engine.comparison import MERGED, differ
from heal.kernels.fused import UNATTENDED, FusedStep
from heal.kernels.table import NoiseTable, quantile_table
from tests.kernels.conftest import DEVICE

LETTERS = "VLN"
"""One letter per position and row; everything else is not attended."""


def groups_of(patterns: Sequence[str]) -> Tensor:
    codes = [[LETTERS.index(c) if c in LETTERS else UNATTENDED for c in row] for row in patterns]
    return torch.tensor(codes, dtype=torch.uint8, device=DEVICE)


def regions_of(groups: Tensor, neutral: bool) -> Regions:
    """By masks, which never mix garbage of padding in by spans that rows happen to share."""
    known = Regions.of(torch.stack([groups == name for name in range(3 if neutral else 2)], dim=1))
    return replace(known, spans=None)


def random_step(
    patterns: Sequence[str],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    table: NoiseTable | None = None,
    **options: object,
) -> FusedStep:
    """A step whose newest position is the last letter, and moments that do not know it yet."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    rows, positions = len(patterns), len(patterns[0])
    groups = groups_of(patterns)
    padding = (groups == UNATTENDED)[:, None, :, None]
    query = normal(rows, heads, dim).to(DEVICE, dtype)
    key, value = (
        (normal(rows, kv_heads, positions, dim) + normal(rows, kv_heads, 1, dim)).to(DEVICE, dtype) for _ in range(2)
    )
    key, value = key.masked_fill(padding, 77.0), value.masked_fill(padding, -99.0)
    neutral = bool((groups == 2).any())
    calibrated = torch.rand(rows, heads, generator=generator).to(DEVICE) < 0.8
    step = FusedStep(
        query, key, value, groups, moments_before(key, value, groups, neutral), True,
        table or quantile_table(DEVICE), calibrated, 0.5, dim**-0.5, neutral,
    )  # fmt: skip
    return replace(step, **options)  # type: ignore[arg-type]


def moments_before(key: Tensor, value: Tensor, groups: Tensor, neutral: bool) -> Moments:
    """The moments of all positions but the newest."""
    earlier = groups.clone()
    earlier[:, -1] = UNATTENDED
    return Moments.of(key, value, regions_of(earlier, neutral))


@dataclass(frozen=True)
class Expected:
    moments: Moments
    scores: HeadScores
    beta: Tensor
    gamma: Tensor
    out: Tensor
    changed: Tensor


def torch_step(at: FusedStep) -> Expected:
    """The step as heal.analysis computes it; the scores from the states themselves and not from inner products."""
    regions = regions_of(at.groups, at.neutral)
    real = split_attention(at.query, at.key, at.value.masked_fill(_unattended(at), 0), regions, at.scale, at.softcap)
    moments = Moments(*(t.clone() for t in (at.moments.count, at.moments.mean, at.moments.squared)))
    if at.append:
        moments.append(at.key[:, :, -1], at.value[:, :, -1], regions.masks[:, :, -1])
    scores = torch_scores(at, real, moments)
    target = at.target if isinstance(at.target, float) else at.target[None]
    beta, gamma = factors(scores.visual, scores.language, at.calibrated, target, at.limit, at.one_sided)
    out = merge(real, [beta, gamma, None][: len(real)])
    changed = differ(merge(real), out, MERGED * torch.finfo(torch.float32).eps)
    return Expected(moments, scores, beta, gamma, out, changed)


def _unattended(at: FusedStep) -> Tensor:
    return (at.groups == UNATTENDED)[:, None, :, None]


def torch_scores(at: FusedStep, real: list[Partial], moments: Moments) -> HeadScores:
    """Scores in double precision: the noise at its mean, its random part by the expected square."""
    heads = at.query.shape[1]
    asked = group(at.query.float() * at.scale, moments.mean.shape[2])
    centre = torch.matmul(asked, moments.mean[:, :, :, 0].permute(0, 2, 3, 1)).flatten(1, 2)
    spread = torch.matmul(asked.square(), moments.variance[:, :, :, 0].permute(0, 2, 3, 1)).flatten(1, 2).sqrt()
    noise = []
    for name in range(MASKED_GROUPS):
        count = moments.count[:, name, None].expand(-1, heads)
        log_sum, concentration = at.table.lookup(count, spread[..., name])
        mean, variance = (_per_query_head(m[:, name, :, 1], heads) for m in (moments.mean, moments.variance))
        empty = count == 0
        lse = (centre[..., name] + log_sum).masked_fill(empty, -torch.inf)
        noise.append((mean, lse, concentration.masked_fill(empty, 0.0) * variance.sum(-1)))
    zero = torch.zeros_like(real[0].lse)
    found = []
    h = _state([p.value for p in real], [p.lse for p in real], [zero] * len(real))[0]
    for replaced in ((True, True), (False, True), (True, False)):  # H00, H10, H01
        worlds = []
        for v in range(at.table.nodes if replaced[0] else 1):
            for w in range(at.table.nodes if replaced[1] else 1):
                values, lses, randoms = [p.value for p in real], [p.lse for p in real], [zero] * len(real)
                for name, node in enumerate((v, w)):
                    if replaced[name]:
                        mean, lse, random = noise[name]
                        values[name], lses[name], randoms[name] = mean, lse[node], random[node]
                worlds.append(dissimilarity(h, *_state(values, lses, randoms), at.measure))
        found.append(torch.stack(worlds).mean(0))
    total, only_language, only_visual = found
    return HeadScores((total - only_language).float(), (total - only_visual).float(), total.float())


def _state(values: list[Tensor], lses: list[Tensor], randoms: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean of a state, and the expected square of its random part."""
    parts = shares(torch.stack(lses).double().clamp(min=LOWEST))
    mean = sum(part[..., None] * value.double() for part, value in zip(parts, values, strict=True))
    random = sum(part.square() * r.double() for part, r in zip(parts, randoms, strict=True))
    assert isinstance(mean, Tensor)
    assert isinstance(random, Tensor)
    return mean, random


def dissimilarity(h: Tensor, mean: Tensor, random: Tensor, measure: str) -> Tensor:
    """1 − Sim with the norm of the state and of the difference by their expected squares."""
    length = h.norm(dim=-1)
    new = (mean.square().sum(-1) + random).sqrt()
    inner = (h * mean).sum(-1)
    cosine = ((1 - inner / (length * new)) / 2).masked_fill((length == 0) | (new == 0), 0.5)
    distance = ((mean - h).square().sum(-1) + random).sqrt() / (length + new).clamp(min=1e-38)
    l2 = torch.tanh(distance / 2)
    return {"cosine": cosine, "l2": l2, "cosine+l2": (cosine + l2) / 2}[measure]
