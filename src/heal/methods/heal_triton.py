"""The decoding step of HEAL on a GPU, by Triton: one launch per layer, or two if the context is split."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from heal.analysis.contribution import Shift
from heal.analysis.counterfactual import Attended
from heal.analysis.expected import StepTables
from heal.analysis.moments import Moments
from heal.kernels.fused import DTYPES, FusedOutcome, FusedStep, uncovered
from heal.methods.heal import HEAL


class TritonStep:
    """The kernels with the options of a configuration."""

    name: ClassVar[str] = "Triton"
    dtype: ClassVar[torch.dtype] = torch.float32
    exact: ClassVar[bool] = True

    def __init__(self, config: HEAL) -> None:
        from heal.kernels import append, causal, launch

        self._append = append.fused_append
        self._launch = launch.launch_step
        self._contribution = causal.fused_contribution
        self._config = config

    def uncovered(self, at: Attended) -> str | None:
        return uncovered(at.query, at.key, at.value, at.softcap)

    def append(self, at: Attended, moments: Moments) -> None:
        self._append(moments, at.key, at.value, at.regions.labels)

    def run(
        self, at: Attended, moments: Moments, append: bool, tables: StepTables, least: Tensor, targets: Tensor
    ) -> FusedOutcome:
        config = self._config
        return self._launch(
            FusedStep(
                query=at.query,
                key=at.key,
                value=at.value,
                groups=at.regions.labels,
                moments=moments,
                append=append,
                tables=tables,
                least=least,
                targets=targets,
                scale=at.scale,
                neutral=at.regions.group_count > 2,
                limit=config.limit,
                one_sided=config.drift == "language",
                measure=config.measure,
            )
        )

    def project(
        self, residual: Tensor, outputs: Tensor, shift: Shift, projection: nn.Linear, multiplier: float
    ) -> None:
        return None

    def contribution(self, stream: Tensor, shift: Shift, weight: Tensor) -> Tensor | None:
        if weight.dtype not in DTYPES:
            return None
        return self._contribution(stream, shift, weight, self._config.measure)
