"""The decoding step of HEAL on a CPU, by the functions that Numba compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heal.analysis.contribution import Shift
from heal.analysis.counterfactual import Attended
from heal.analysis.expected import ENTRIES_PER_DOUBLING, StepTables
from heal.analysis.information import MEASURES
from heal.analysis.moments import Moments
from heal.methods.heal import HEAL

SMALL = 2**16
"""Up to this many cached keys of a layer (numbers), Numba's attention is faster than two masked passes of sdpa."""


@dataclass(frozen=True, eq=False)
class NativeOutcome:
    """The result of one step of one layer."""

    scores: Float[Tensor, "rows heads three"]
    factors: Float[Tensor, "rows heads two"]
    plain: Float[Tensor, "rows heads dim"]
    out: Float[Tensor, "rows heads dim"]


class NativeStep:
    """The compiled functions with the options of a configuration."""

    name: ClassVar[str] = "Numba"
    dtype: ClassVar[torch.dtype] = torch.float64
    exact: ClassVar[bool] = False

    def __init__(self, config: HEAL) -> None:
        from heal.kernels import cpu

        self._functions = cpu
        self._limit = np.inf if config.limit is None else float(config.limit)
        self._one_sided = config.drift == "language"
        self._measure = MEASURES.index(config.measure)

    def uncovered(self, at: Attended) -> str | None:
        if at.softcap is not None:
            return "capped scores"
        if not at.query.dtype == at.key.dtype == at.value.dtype == torch.float32:
            return f"{str(at.key.dtype).removeprefix('torch.')} attention on a CPU"
        return None

    def append(self, at: Attended, moments: Moments) -> None:
        self._functions.append(
            moments.mean.numpy(),
            moments.squared.numpy(),
            moments.count.numpy(),
            at.key.numpy()[:, :, -1],
            at.value.numpy()[:, :, -1],
            at.regions.codes[:, -1],
        )

    def run(
        self, at: Attended, moments: Moments, append: bool, tables: StepTables, least: Tensor, targets: Tensor
    ) -> NativeOutcome:
        if append:
            self.append(at, moments)
        query = at.query.numpy()
        rows, heads, dim = query.shape
        groups = at.regions.group_count
        if at.key.numel() <= SMALL:
            values = np.empty((rows, heads, groups, dim), np.float32)
            lse = np.empty((rows, heads, groups), np.float32)
            self._functions.split_rows(
                query, at.key.numpy(), at.value.numpy(), at.regions.codes, np.float32(at.scale), values, lse
            )
        else:
            values, lse = at.real.values.flatten(1, 2).numpy(), at.real.lse.flatten(1, 2).numpy()
        measured = np.empty((rows, heads, 5))
        outputs = np.empty((2, rows, heads, dim), np.float32)
        self._functions.finish(
            query,
            values,
            lse,
            moments.mean.numpy(),
            moments.squared.numpy(),
            tables.array,
            tables.positions,
            ENTRIES_PER_DOUBLING,
            at.scale,
            least.numpy(),
            targets.numpy(),
            self._limit,
            self._one_sided,
            self._measure,
            measured[:, :, :3],
            measured[:, :, 3:],
            outputs[0],
            outputs[1],
        )
        plain, out = torch.from_numpy(outputs).unbind()
        found = torch.from_numpy(measured)
        return NativeOutcome(found[..., :3], found[..., 3:], plain, out)

    def contribution(self, stream: Tensor, shift: Shift, weight: Tensor) -> Tensor | None:
        return None
