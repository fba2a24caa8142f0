"""The decoding step of one layer on a GPU: what goes in, what comes out, and what the kernels cover."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from heal.analysis.expected import StepTables
from heal.analysis.information import Measure
from heal.analysis.moments import Moments
from heal.extras import optional

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
    tables: StepTables
    least: Float[Tensor, "rows heads"]
    """What visual and language information must exceed: ∞ for heads that are not calibrated."""
    targets: Float[Tensor, "*#heads two"]
    """(α, 1 − α), for all heads or by head."""
    scale: float
    neutral: bool = False
    """Whether there are neutral positions (sinks)."""
    softcap: float | None = None
    limit: float | None = None
    one_sided: bool = False
    measure: Measure = "cosine"


@dataclass(frozen=True, eq=False)
class FusedOutcome:
    """What one decoding step of one layer gives."""

    outputs: Float[Tensor, "two rows heads dim"]
    """Plain and calibrated, in the dtype of the query. Heads with factors of 1 have the same bits in both."""
    results: Float[Tensor, "rows heads six"]
    """Visual, language and total information, β, γ, and the share of attention on visual positions."""

    @property
    def plain(self) -> Float[Tensor, "rows heads dim"]:
        return self.outputs[0]

    @property
    def out(self) -> Float[Tensor, "rows heads dim"]:
        return self.outputs[1]

    @property
    def scores(self) -> Float[Tensor, "rows heads three"]:
        return self.results[..., :3]

    @property
    def factors(self) -> Float[Tensor, "rows heads two"]:
        return self.results[..., 3:5]

    @property
    def visual_share(self) -> Float[Tensor, "rows heads"]:
        return self.results[..., 5]


def uncovered(query: Tensor, key: Tensor, value: Tensor, softcap: float | None) -> str | None:
    """None if the kernels do a step with these tensors, otherwise what they do not cover."""
    if not query.dtype == key.dtype == value.dtype:
        return f"a cache of {key.dtype} and {value.dtype} with queries of {query.dtype}"
    if key.dtype not in DTYPES:
        return f"{key.dtype} attention"
    if key.shape[-1] != value.shape[-1]:
        return "values with another number of dimensions than keys"
    if key.shape[-1] > WIDEST:
        return f"heads with more than {WIDEST} dimensions"
    if softcap is not None:
        return "capped scores"  # their noise is not normal
    return None


def fused_step(at: FusedStep, parts: int | None = None) -> FusedOutcome:
    """One decoding step of one layer. Waits for nothing.

    `parts`: how many programs share the context of one key/value head. None: as many as fill the GPU. With one, a
    step is one launch, otherwise two.
    """
    with optional():
        from heal.kernels.launch import launch_step
    return launch_step(at, parts)
