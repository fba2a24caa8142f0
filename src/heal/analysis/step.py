"""One decoding step of one layer after its attention was split, as a single function that can be compiled.

The step consists of about a hundred small operations. Each is a kernel launch on a GPU and starts with cold caches on
a CPU; compiled, they become a handful of kernels. Random numbers are drawn outside, so that both forms agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.calibration import factors
from heal.analysis.counterfactual import GaussianDraw, gaussian_partials
from heal.analysis.information import Measure, scores_from_partials
from heal.analysis.split import Partial, merge
from heal.errors import UnsupportedError

Outcome = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class LayerStep:
    """The inputs of one decoding step of one layer."""

    query: Float[Tensor, "rows heads dim"]
    scale: float
    softcap: float | None
    mean: Float[Tensor, "rows groups kv_heads two dim"]
    squared: Float[Tensor, "rows groups kv_heads two dim"]
    draw: GaussianDraw
    real: list[Partial]
    calibrated: Bool[Tensor, "rows heads"]
    target: float | Tensor
    limit: float | None
    one_sided: bool
    measure: Measure


def step(at: LayerStep) -> Outcome:
    """Visual, language and total information of every head, β, γ, and the calibrated output."""
    noise = gaussian_partials(at.query, at.scale, at.mean, at.squared, at.draw, at.softcap)
    scores = scores_from_partials(at.real, noise, at.measure)
    beta, gamma = factors(scores.visual, scores.language, at.calibrated, at.target, at.limit, at.one_sided)
    out = merge(at.real, [beta, gamma, None][: len(at.real)])
    return scores.visual, scores.language, scores.total, beta, gamma, out


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(step, dynamic=True)


def compiled_step(at: LayerStep) -> Outcome:
    """`step` through torch.compile. The first call takes half a minute; lengths may change from call to call."""
    # numbers that change between steps would trigger a recompilation: pass them as tensors
    first, second = (u if isinstance(u, Tensor) else torch.full((), u, device=at.query.device) for u in at.draw.units)
    try:
        return _compiled()(replace(at, draw=replace(at.draw, units=(first, second))))
    except torch._inductor.exc.InvalidCxxCompiler as error:
        raise UnsupportedError("compile=true needs a C++ compiler: install g++, or leave the option out") from error
