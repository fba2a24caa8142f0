"""Stage 1 of HEAL at one layer: how far the residual stream moves when the output of a head is replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from heal.analysis.contribution import (
    Shift,
    ShiftSums,
    contribution,
    contributions_of,
    head_shifts,
    projection_and_sums,
    replaced,
    shift_sums,
    squared_norms,
)
from heal.analysis.noise import Noise
from heal.analysis.reference import reference_contribution
from heal.engine.layout import Layout
from heal.engine.residuals import ResidualAdd, residual_add
from heal.methods.heal import HEAL
from heal.methods.heal_fused import FusedFunctions


class CausalStage:
    """The contributions of heads, from the input of a layer and the input and output of its o_proj."""

    def __init__(self, config: HEAL, layout: Layout, functions: FusedFunctions | None = None) -> None:
        self.config = config
        self._functions = functions
        self.heads = layout.heads
        self._adds: dict[int, ResidualAdd] = {}
        self._squared_norms: dict[int, Tensor] = {}
        if config.replaced_by != "none":
            hidden = layout.model.config.get_text_config().hidden_size
            for index in range(len(layout.layers)) if config.layers is None else config.layers:
                self._adds[index] = residual_add(layout.layers[index], layout.attention[index], hidden)

    def fused(
        self, layer: int, residual: Tensor, heads: Tensor, projection: nn.Module, noise: Noise
    ) -> tuple[Tensor, ShiftSums] | None:
        """o_proj and the sums of the shifts in one read of the weights, if reading them dominates the time."""
        add = self._adds[layer]
        if self._functions is not None and self._functions.name == "Triton":  # it runs after o_proj
            return None
        if type(projection) is not nn.Linear or heads.is_cuda or projection.weight.dtype != torch.float32:
            return None
        if add.norm is not None:  # the norm needs the complete output first
            return None
        outputs = heads.view(heads.shape[0], self.heads, -1)
        shift = Shift.of(outputs, self.config.replaced_by, noise, self._norms(layer, projection))
        if self._functions is not None:
            found = self._functions.project(
                residual, outputs, shift.times(add.multiplier), projection, add.multiplier
            )
            if found is not None:
                return found
        return projection_and_sums(residual, outputs, shift, projection.weight, projection.bias, add.multiplier)

    def measured(
        self, layer: int, residual: Tensor, heads: Tensor, output: Tensor, projection: nn.Module, noise: Noise
    ) -> Tensor | ShiftSums:
        """The contributions after o_proj has run, or what `finished` needs for them, for any kind of module."""
        config, add = self.config, self._adds[layer]
        replacement = config.replaced_by
        outputs = heads.view(heads.shape[0], self.heads, -1)
        forward = projection.forward  # hooks on the module must not run for these extra inputs
        own = type(projection) is nn.Linear and projection.weight.device == heads.device
        linear = own and add.norm is None
        if replacement == "expected" and not linear:  # the noise cannot be followed through a norm or hidden weights
            replacement = "gaussian"
        if config.path == "reference":
            norms = squared_norms(_weight(projection), self.heads) if replacement == "expected" else None
            return reference_contribution(
                outputs, residual, lambda x: add.added(forward(x)), replacement, noise, config.measure, norms
            )
        stream = residual.float() + add.added(output)
        if linear:
            shift = Shift.of(outputs.float(), replacement, noise, self._norms(layer, projection))
            return self._projected(stream, shift.times(add.multiplier), _weight(projection))
        moved = replaced(outputs, replacement, noise) - outputs.float()
        if own:
            shifts = head_shifts(moved, _weight(projection))
        else:  # quantised, adapted or offloaded: the weights are not accessible
            shifts = _project_blocks(moved.to(heads.dtype), forward)
        # apply the layer's norm and multiplier
        shifts = add.added(output.float().unsqueeze(1) + shifts) - add.added(output).unsqueeze(1)
        return contribution(stream, shifts, config.measure)

    def finished(self, found: Sequence[Tensor | ShiftSums | None]) -> list[Tensor | None]:
        """The contributions of all layers. Those that are still sums are computed together."""
        places = [layer for layer, own in enumerate(found) if isinstance(own, ShiftSums)]
        done = [None if isinstance(own, ShiftSums) else own for own in found]
        if places:
            sums = [own for own in found if isinstance(own, ShiftSums)]
            for layer, own in zip(places, contributions_of(sums, self.config.measure), strict=True):
                done[layer] = own
        return done

    def _projected(self, stream: Tensor, shift: Shift, weight: Tensor) -> Tensor | ShiftSums:
        found = None if self._functions is None else self._functions.contribution(stream, shift, weight)
        return shift_sums(stream, shift, weight) if found is None else found

    def _norms(self, layer: int, projection: nn.Module) -> Tensor | None:
        """‖W_O^(i)‖² of the heads of a layer, computed once."""
        if self.config.replaced_by != "expected":
            return None
        if layer not in self._squared_norms:
            self._squared_norms[layer] = squared_norms(_weight(projection), self.heads)
        return self._squared_norms[layer]


def _weight(projection: nn.Module) -> Tensor:
    assert isinstance(projection, nn.Linear)
    return projection.weight


def _project_blocks(moved: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
    """W_O^(i) u_i computed by the module, one head per row of a block-diagonal input."""
    rows, heads, dim = moved.shape
    blocks = moved.new_zeros(rows, heads, heads, dim)
    index = torch.arange(heads, device=moved.device)
    blocks[:, index, index] = moved
    bias = project(moved.new_zeros(1, heads * dim)).float()
    return project(blocks.view(rows, heads, heads * dim)).float() - bias
