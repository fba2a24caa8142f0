"""The decoding step of one layer on a GPU: what goes in, what comes out, and what the kernels cover."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from heal.analysis.information import Measure
from heal.analysis.moments import Moments
from heal.engine.comparison import MERGED
from heal.extras import optional
from heal.kernels.table import NoiseTable

UNATTENDED = 255
"""The group of a position that the newest query does not attend: padding, or outside a sliding window."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256


@dataclass(frozen=True, eq=False)
class FusedStep:
    """The inputs of one decoding step of one layer. Nothing needs to be contiguous except the moments."""

    query: Float[Tensor, "rows heads dim"]
    key: Float[Tensor, "rows kv_heads positions dim"]
    """As far as the cache is filled: a slice of a static cache. The last position is the newest."""
    value: Float[Tensor, "rows kv_heads positions dim"]
    groups: UInt8[Tensor, "rows positions"]
    """0 visual, 1 language, 2 neutral, 255 not attended."""
    moments: Moments
    append: bool
    """Whether the moments do not contain the newest position yet. It is added in place."""
    table: NoiseTable
    calibrated: Bool[Tensor, "rows heads"]
    target: float | Float[Tensor, " heads"]
    """α, or one per head."""
    scale: float
    neutral: bool = False
    """Whether there are neutral positions (sinks)."""
    softcap: float | None = None
    limit: float | None = None
    one_sided: bool = False
    measure: Measure = "cosine"


@dataclass(frozen=True, eq=False)
class FusedOutcome:
    """The calibrated output in the dtype of the query, and what was measured, all in fp32."""

    out: Float[Tensor, "rows heads dim"]
    results: Float[Tensor, "seven rows heads"]

    @property
    def visual(self) -> Float[Tensor, "rows heads"]:
        return self.results[0]

    @property
    def language(self) -> Float[Tensor, "rows heads"]:
        return self.results[1]

    @property
    def total(self) -> Float[Tensor, "rows heads"]:
        return self.results[2]

    @property
    def beta(self) -> Float[Tensor, "rows heads"]:
        return self.results[3]

    @property
    def gamma(self) -> Float[Tensor, "rows heads"]:
        return self.results[4]

    def changed(self) -> Bool[Tensor, "rows heads"]:
        """Heads that the calibration changed: heal.engine.comparison.differ, for stacked outcomes as well."""
        return changed(self.results[5:])


def changed(sizes: Float[Tensor, "*layers two rows heads"]) -> Bool[Tensor, "*layers rows heads"]:
    """From the largest change and the largest entry of every head: a row is known only when all its heads are."""
    shift, entry = sizes.unbind(-3)
    return shift > MERGED * torch.finfo(torch.float32).eps * entry.amax(-1, keepdim=True)


def uncovered(
    *,
    masking: str,
    covariance: str,
    draws: int,
    dtype: torch.dtype,
    key_dim: int,
    value_dim: int,
    softcap: float | None,
) -> str | None:
    """None if the kernels do a step with these options, otherwise what they do not cover."""
    if (masking, covariance) != ("gaussian", "diagonal"):
        return f"masking {masking} with {covariance} covariance"
    if draws != 1:
        return f"{draws} draws"
    if dtype not in DTYPES:
        return f"{dtype} attention"
    if key_dim != value_dim:
        return "values with another number of dimensions than keys"
    if key_dim > WIDEST:
        return f"heads with more than {WIDEST} dimensions"
    if softcap is not None:
        return "capped scores"  # their noise has no table
    return None


def fused_step(at: FusedStep, parts: int | None = None) -> FusedOutcome:
    """One decoding step of one layer. Waits for nothing.

    `parts`: how many programs share the context of one key/value head. None: as many as fill the GPU. With one, a
    step is one launch, otherwise two.
    """
    with optional():
        from heal.kernels.launch import launch_step
    return launch_step(at, parts)
