"""Decoding steps of one layer, and the step in torch: the form that the kernels must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heal.analysis.calibration import joint_factors
from heal.analysis.counterfactual import Attended
from heal.analysis.expected import StepTables, expected_scores
from heal.analysis.information import DEAD_ZONE
from heal.analysis.lognormal import NodeTables
from heal.analysis.moments import Moments
from heal.analysis.split import UNATTENDED, Regions
from heal.kernels.fused import FusedStep
from tests.kernels.conftest import DEVICE

SOURCE = NodeTables(DEVICE)
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
    least = torch.where(torch.rand(rows, heads, generator=generator) < 0.8, DEAD_ZONE, torch.inf).to(DEVICE)
    scale = dim**-0.5
    step = FusedStep(
        query, key, value, groups, moments_before(key, value, groups, neutral), True,
        StepTables.of(regions_of(groups, neutral), scale, SOURCE), least, goals(0.5), scale, neutral,
    )  # fmt: skip
    return replace(step, **options)  # type: ignore[arg-type]


def goals(*alphas: float) -> Tensor:
    """(α, 1 − α) for all heads, or by head."""
    return torch.tensor([[alpha, 1 - alpha] for alpha in alphas], device=DEVICE)


def moments_before(key: Tensor, value: Tensor, groups: Tensor, neutral: bool) -> Moments:
    """The moments of all positions but the newest."""
    earlier = groups.clone()
    earlier[:, -1] = UNATTENDED
    return Moments.of(key, value, regions_of(earlier, neutral))


@dataclass(frozen=True)
class Expected:
    moments: Moments
    scores: Tensor
    factors: Tensor
    plain: Tensor
    out: Tensor


def torch_step(at: FusedStep) -> Expected:
    """The step as heal.analysis computes it, in fp32 attention and fp64 scores."""
    regions = regions_of(at.groups, at.neutral)
    padding = (at.groups == UNATTENDED)[:, None, :, None]
    key, value = at.key.float(), at.value.float().masked_fill(padding, 0)
    attended = Attended(at.query.float(), key.masked_fill(padding, 0), value, regions, at.scale, at.softcap)
    moments = Moments(*(t.clone() for t in (at.moments.count, at.moments.mean, at.moments.squared)))
    if at.append:
        moments.append(key[:, :, -1], value[:, :, -1], regions.masks[:, :, -1])
    scores = expected_scores(attended, moments, at.tables, at.measure).flatten(1, 2)
    factors = joint_factors(scores, at.least, at.targets, at.limit, at.one_sided)
    by_head = factors.unflatten(1, (key.shape[1], -1)).float()
    plain = attended.real.output.flatten(1, 3)
    return Expected(moments, scores, factors, plain, attended.real.scaled(by_head)[:, 0])
