"""One decoding step of one layer after its attention was split, as a single function that can be compiled.

On a GPU each of its hundred small operations is a launch, and on a CPU each starts with cold caches: compiled, they
are a handful of kernels. What is random is drawn outside, so that both forms give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
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


def step(
    query: Float[Tensor, "rows heads dim"],
    scale: float,
    softcap: float | None,
    mean: Float[Tensor, "rows sets kv_heads two dim"],
    squared: Float[Tensor, "rows sets kv_heads two dim"],
    draw: GaussianDraw,
    real: list[Partial],
    calibrated: Bool[Tensor, "rows heads"],
    target: float | Tensor,
    limit: float | None,
    one_sided: bool,
    measure: Measure,
) -> Outcome:
    """Visual, language and total information of every head, β, γ, and the calibrated output."""
    scores = scores_from_partials(real, gaussian_partials(query, scale, mean, squared, draw, softcap), measure)
    beta, gamma = factors(scores.visual, scores.language, calibrated, target, limit, one_sided)
    out = merge(real, [beta, gamma, None][: len(real)])
    return scores.visual, scores.language, scores.total, beta, gamma, out


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(_flat, dynamic=True)


def compiled_step(
    query: Tensor,
    scale: float,
    softcap: float | None,
    mean: Tensor,
    squared: Tensor,
    draw: GaussianDraw,
    real: list[Partial],
    calibrated: Tensor,
    target: float | Tensor,
    limit: float | None,
    one_sided: bool,
    measure: Measure,
) -> Outcome:
    """The same by torch.compile: the first call takes half a minute, and lengths may change from call to call."""
    # numbers that change from step to step would be compiled anew each time: they go in as tensors
    units = [u if isinstance(u, Tensor) else torch.full((), u, device=query.device) for u in draw.units]
    values, lses = [p.value for p in real], [p.lse for p in real]
    try:
        return _compiled()(
            query, scale, softcap, mean, squared, draw.samples, draw.scores, units, draw.beyond, values, lses,
            calibrated, target, limit, one_sided, measure,
        )  # fmt: skip
    except torch._inductor.exc.InvalidCxxCompiler as error:
        raise UnsupportedError("compile=true needs a C++ compiler: install g++, or leave the option out") from error


def _flat(
    query: Tensor,
    scale: float,
    softcap: float | None,
    mean: Tensor,
    squared: Tensor,
    samples: Tensor,
    normals: tuple[Tensor, Tensor],
    units: list[Tensor],
    beyond: tuple[Tensor | None, Tensor | None],
    values: list[Tensor],
    lses: list[Tensor],
    calibrated: Tensor,
    target: float | Tensor,
    limit: float | None,
    one_sided: bool,
    measure: Measure,
) -> Outcome:
    draw = GaussianDraw(samples, normals, (units[0], units[1]), beyond)
    real = [Partial(value, lse) for value, lse in zip(values, lses, strict=True)]
    return step(query, scale, softcap, mean, squared, draw, real, calibrated, target, limit, one_sided, measure)
