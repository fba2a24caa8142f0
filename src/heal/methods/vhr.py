"""VHR: amplify the heads that react to the image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.engine.branches import Branch, Prompt
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.errors import ConfigError
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.counting import CountingRuntime, seeing

TEXT = "text"


@register
@dataclass(frozen=True)
class VHR(Method):
    """Amplify the half of the heads whose output changes most when the image is removed."""

    name: ClassVar[str] = "vhr"
    summary: ClassVar[str] = "amplifies the heads that react to the image"
    paper: ClassVar[str] = "Cracking the Code of Hallucination in LVLMs with Vision-aware Head Divergence (ACL 2025)"

    alpha: float = 2.0
    """Factor of the selected heads' outputs. 1: none. In the paper, the model collapses at 4."""

    layers: tuple[int, ...] | None = None
    """Layers whose heads can be amplified. None: layer 1 and the last 14 of every 32."""

    outliers: bool = True
    """Skip heads whose divergence and whose text-only output are both more than one standard deviation above the
    mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"alpha must be more than 0, not {self.alpha}")
        checks.layer_list(self)

    def chosen_layers(self, count: int) -> frozenset[int]:
        if self.layers is not None:
            checks.layers_exist(self, count)
            return frozenset(self.layers)
        return frozenset({min(1, count - 1), *range(count - max(1, round(14 / 32 * count)), count)})

    def runtime(self, layout: Layout, trace: bool) -> Runtime[State]:
        return _VHRRuntime(self, self.chosen_layers(len(layout.layers)))


def reacting_heads(
    seen: Float[Tensor, "rows heads dim"], blind: Float[Tensor, "rows heads dim"], outliers: bool
) -> Bool[Tensor, "rows heads"]:
    """Heads whose divergence between the passes with and without the image is above the layer's median.

    No head is selected if all divergences are rounding errors: a sliding window may not reach the image.
    """
    divergence = torch.linalg.vector_norm(seen.float() - blind.float(), dim=-1)
    rounding = 8 * torch.finfo(seen.dtype).eps * torch.linalg.vector_norm(blind.float(), dim=-1)
    reacts = (divergence > rounding).any(-1, keepdim=True)
    if outliers:
        size = blind.float().square().sum(-1)
        both = _outlier(divergence) & _outlier(size) & (divergence.std(-1, keepdim=True) > 1)
        divergence = divergence.masked_fill(both, 0.0)
    return (divergence > divergence.quantile(0.5, dim=-1, keepdim=True)) & reacts


def _outlier(values: Tensor) -> Tensor:
    return values > values.mean(-1, keepdim=True) + values.std(-1, keepdim=True)


class _VHRRuntime(CountingRuntime):
    neutral: ClassVar[Mapping[str, float]] = {"scale": 1.0}
    branches = (Branch(TEXT, Prompt.without_images, first=True, once=True),)
    idle = "alpha is 1, or no head reacted to the image"

    def __init__(self, config: VHR, layers: frozenset[int]) -> None:
        self.config = config
        self.layers = layers
        self._blind: dict[int, Tensor] = {}
        self._scales: list[Tensor] = []

    def begin(self, generation: Generation[State], earlier: State | None) -> State:
        self._blind.clear()
        return State()

    def before_pass(self, generation: Generation[State]) -> None:
        self._scales.clear()

    def head_outputs(self, generation: Generation[State], layer: int, outputs: Tensor) -> Tensor:
        if layer not in self.layers:
            return outputs
        if generation.branch:
            self._blind[layer] = outputs[:, -1]
            return outputs
        rows, name = generation.state.rows, f"layer {layer}"
        if generation.phase == "prompt":
            chosen = reacting_heads(outputs[:, -1], self._blind.pop(layer), self.config.outliers)
            # without an image both passes are equal up to rounding
            chosen &= seeing(generation).to(chosen.device)[:, None]
            rows[name] = torch.where(chosen, self.config.alpha, 1.0)
        self._scales.append(rows[name])
        return outputs * rows[name][:, None, :, None].to(outputs.dtype)

    def after_pass(self, generation: Generation[State]) -> None:
        if not generation.branch:
            generation.tally.add(torch.stack([s.to(self._scales[0].device) for s in self._scales], dim=1))
