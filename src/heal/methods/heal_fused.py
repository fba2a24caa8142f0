"""The decoding step of HEAL as one compiled function per layer: what every such implementation offers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heal.analysis.contribution import Shift, ShiftSums
from heal.analysis.counterfactual import Attended
from heal.analysis.expected import StepTables
from heal.analysis.moments import Moments
from heal.kernels import available, interpreted
from heal.methods.heal import HEAL


@runtime_checkable
class Outcome(Protocol):
    """The result of one step of one layer."""

    @property
    def scores(self) -> Float[Tensor, "rows heads three"]: ...
    @property
    def factors(self) -> Float[Tensor, "rows heads two"]: ...
    @property
    def visual_share(self) -> Float[Tensor, "rows heads"]:
        """The share of attention on visual positions."""

    @property
    def plain(self) -> Float[Tensor, "rows heads dim"]: ...
    @property
    def out(self) -> Float[Tensor, "rows heads dim"]: ...


@runtime_checkable
class FusedFunctions(Protocol):
    """Compiled functions with the options of a configuration."""

    name: ClassVar[str]
    dtype: ClassVar[torch.dtype]
    """Of the targets."""
    exact: ClassVar[bool]
    """Whether heads with factors of 1 have the bits of the plain output."""

    def uncovered(self, at: Attended) -> str | None:
        """Why a layer cannot be computed, or None."""

    def append(self, at: Attended, moments: Moments) -> None:
        """Add the newest position to the moments."""

    def run(
        self, at: Attended, moments: Moments, append: bool, tables: StepTables, least: Tensor, targets: Tensor
    ) -> Outcome:
        """`least` and `targets` as in `joint_factors`, with targets [heads or 1, 2].

        `append`: whether the moments do not contain the newest position yet. It is added in place.
        """

    def project(
        self, residual: Tensor, outputs: Tensor, shift: Shift, projection: nn.Linear, multiplier: float
    ) -> tuple[Tensor, ShiftSums] | None:
        """`projection_and_sums`, or None if torch is as good.

        The shift is in units of the stream: it contains `multiplier` already.
        """

    def contribution(self, stream: Tensor, shift: Shift, weight: Tensor) -> Tensor | None:
        """`projected_contribution`, or None if torch is as good."""


def find(config: HEAL, device: torch.device) -> FusedFunctions | str:
    """The functions for a device, or the reason why there are none."""
    if config.noise != "expected" or config.covariance != "diagonal":
        return f"{config.noise} masking with {config.covariance} covariance"
    if config.heads == "permuted":
        return "factors that are permuted among heads"
    if device.type == "cpu" and not interpreted():
        if find_spec("numba") is None:
            return 'Numba is not installed: run `pip install ".[cpu]"` in the folder of heal'
        from heal.methods.heal_native import NativeStep

        return NativeStep(config)
    reason = available(device)
    if reason is not None:
        return reason
    from heal.methods.heal_triton import TritonStep

    return TritonStep(config)
