"""The decoding step of HEAL on a CPU, by the functions that Numba compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from heal.analysis.contribution import Shift, ShiftSums
from heal.analysis.counterfactual import Attended
from heal.analysis.expected import ENTRIES_PER_DOUBLING, StepTables
from heal.analysis.information import MEASURES
from heal.analysis.moments import Moments
from heal.methods.heal import HEAL

SMALL = 2**16
"""Up to this many cached keys of a layer (numbers), one thread is faster than several threads of sdpa."""

NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class NativeOutcome:
    """The result of one step of one layer."""

    measured: Float[Tensor, "rows heads six"]
    """Scores, β, γ, and the share of attention on visual positions."""
    plain: Float[Tensor, "rows heads dim"]
    out: Float[Tensor, "rows heads dim"]

    @property
    def scores(self) -> Float[Tensor, "rows heads three"]:
        return self.measured[..., :3]

    @property
    def factors(self) -> Float[Tensor, "rows heads two"]:
        return self.measured[..., 3:5]

    @property
    def visual_share(self) -> Float[Tensor, "rows heads"]:
        return self.measured[..., 5]


class NativeStep:
    """The compiled functions with the options of a configuration."""

    name: ClassVar[str] = "Numba"
    dtype: ClassVar[torch.dtype] = torch.float64
    exact: ClassVar[bool] = False

    def __init__(self, config: HEAL) -> None:
        from heal.kernels import cpu, cpu_attention, cpu_projection

        self._functions, self._attention, self._projection = cpu, cpu_attention, cpu_projection
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
        self._attention.append(*moments.arrays, at.key.numpy(), at.value.numpy(), at.regions.codes)

    def run(
        self, at: Attended, moments: Moments, append: bool, tables: StepTables, least: Tensor, targets: Tensor
    ) -> NativeOutcome:
        query, key, value = _contiguous(at.query), at.key.numpy(), at.value.numpy()
        codes, (mean, squared, count) = at.regions.codes, moments.arrays
        if append:
            self._attention.append(mean, squared, count, key, value, codes)
        rows, heads, dim = query.shape
        groups = at.regions.group_count
        if _by_numba(at):
            values = np.empty((rows, heads, groups, dim), np.float32)
            lse = np.empty((rows, heads, groups), np.float32)
            self._attention.split_rows(query, key, value, codes, np.float32(at.scale), values, lse)
        else:
            values, lse = at.real.values.flatten(1, 2).numpy(), at.real.lse.flatten(1, 2).numpy()
        measured = np.empty((rows, heads, 6))
        outputs = np.empty((2, rows, heads, dim), np.float32)
        bank, counts = tables.banked
        self._functions.finish(
            query,
            values,
            lse,
            mean,
            squared,
            bank,
            counts,
            ENTRIES_PER_DOUBLING,
            at.scale,
            _contiguous(least),
            _contiguous(targets),
            self._limit,
            self._one_sided,
            self._measure,
            measured,
            outputs,
        )
        plain, out = torch.from_numpy(outputs).unbind()
        return NativeOutcome(torch.from_numpy(measured), plain, out)

    def project(
        self, residual: Tensor, outputs: Tensor, shift: Shift, projection: nn.Linear, multiplier: float
    ) -> tuple[Tensor, ShiftSums] | None:
        weight, (rows, heads, _) = projection.weight.detach(), outputs.shape
        if rows > 1 or not weight.is_contiguous():  # a matrix product uses the weights of a block for all rows
            return None
        if weight.numel() > SMALL and torch.get_num_threads() > 1:
            return None
        projected = np.empty((1, len(weight)), np.float32)
        sums = np.zeros((2, heads))
        if shift.random is not None:
            sums[1] = shift.random[0].numpy()
        self._projection.project(
            weight.numpy(),
            NOTHING if projection.bias is None else projection.bias.detach().numpy(),
            _contiguous(residual[0]),
            _contiguous(outputs[0]),
            _contiguous(shift.moved[0]),
            multiplier,
            projected[0],
            sums,
        )
        whole = torch.from_numpy(projected)
        stream = torch.add(residual, whole, alpha=multiplier)
        norm = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
        return whole, ShiftSums(torch.from_numpy(sums).float().unsqueeze(1), norm)

    def contribution(self, stream: Tensor, shift: Shift, weight: Tensor) -> Tensor | None:
        return None


def _by_numba(at: Attended) -> bool:
    """Whether Numba's attention, which has one thread, is faster than sdpa with a pass for each position group."""
    if not (at.key.is_contiguous() and at.value.is_contiguous()):  # the front of a static cache
        return at.key.numel() <= SMALL
    return at.key.numel() <= SMALL or torch.get_num_threads() == 1


def _contiguous(tensor: Tensor) -> NDArray[Any]:
    """Functions are compiled for each memory layout, and are fastest for this one."""
    return np.ascontiguousarray(tensor.numpy())
