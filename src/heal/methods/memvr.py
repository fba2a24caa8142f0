"""MemVR: when a middle layer is uncertain, add the visual features again through the feed-forward block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.split import TINY, VISUAL
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.errors import ConfigError
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.counting import CountingRuntime

Activation = Literal["none", "silu"]
TOP = 10


@register
@dataclass(frozen=True)
class MemVR(Method):
    """Mix the visual features into the feed-forward output after the first uncertain layer of a pass."""

    name: ClassVar[str] = "memvr"
    summary: ClassVar[str] = "adds the visual features again where a middle layer is uncertain"
    paper: ClassVar[str] = (
        "Look Twice Before You Answer: Memory-Space Visual Retracing for Hallucination Mitigation in Multimodal "
        "Large Language Models (ICML 2025)"
    )

    ratio: float = 0.12
    """Share of the visual memory in the output. 0: none. The published scripts use 0.12 to 0.32, by task."""

    threshold: float = 0.75
    """A layer is uncertain if the normalised entropy of its ten most likely tokens exceeds this value."""

    start: int | None = None
    """Only layers after this one are checked. None: 5 of every 32."""

    end: int | None = None
    """Only layers before this one are checked. None: 16 of every 32."""

    activation: Activation = "none"
    """Activation of the products with the visual memory: none (released for LLaVA) or silu (released for Qwen)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction(self, "ratio")
        checks.at_least(self, 0, "threshold", inf=True)
        checks.whole(self, 0, "start", "end")
        checks.one_of(self, Activation, "activation")

    def watched(self, count: int) -> range:
        """Layers, counted from 0, that are checked for uncertainty. The layer after an uncertain one is changed."""
        start = round(5 / 32 * count) if self.start is None else self.start
        end = max(start + 2, round(16 / 32 * count)) if self.end is None else self.end
        found = range(start + 1, min(end, count - 1))
        if not found:
            raise ConfigError(f"there is no layer between start {start} and end {end} in a model with {count} layers")
        return found

    def runtime(self, layout: Layout, trace: bool) -> Runtime[State]:
        return _MemVRRuntime(self, layout)


def uncertainty(logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, " rows"]:
    """Normalised entropy of the ten most likely tokens, 0 to 1."""
    top = logits.topk(min(TOP, logits.shape[-1]), dim=-1).values.log_softmax(-1)
    return -(top.exp() * top).sum(-1) / math.log(top.shape[-1])


def retraced(
    hidden: Float[Tensor, "rows positions dim"],
    output: Float[Tensor, "rows positions dim"],
    memory: Float[Tensor, "rows visual dim"],
    valid: Bool[Tensor, "rows positions"],
    ratio: float,
    activation: Activation,
) -> Float[Tensor, "rows positions dim"]:
    """(1 − ρ)·FFN(x) + ρ·a, with a = (xVᵀ)V rescaled to the size of FFN(x). The scale ignores padding."""
    keys = hidden @ memory.transpose(1, 2)
    again = (torch.nn.functional.silu(keys) if activation == "silu" else keys) @ memory
    weight = valid.unsqueeze(-1).to(output.dtype)
    sizes = [(x.abs() * weight).sum(dim=(1, 2), keepdim=True) for x in (output, again)]
    return (1 - ratio) * output + ratio * sizes[0] / sizes[1].clamp(min=TINY) * again


class _MemVRRuntime(CountingRuntime):
    neutral: ClassVar[Mapping[str, float]] = {"ratio": 0.0}
    idle = "no checked layer was uncertain, or ratio is 0"

    def __init__(self, config: MemVR, layout: Layout) -> None:
        self.config = config
        self.watched = config.watched(len(layout.layers))
        self.norm, self.head = layout.decoder.norm, layout.model.get_output_embeddings()
        self._now: Tensor | None = None
        self._done: Tensor | None = None

    def begin(self, generation: Generation[State], earlier: State | None) -> State:
        state = State()
        state.rows |= earlier.rows if earlier is not None else {}  # images of earlier turns stay in memory
        return state

    def before_pass(self, generation: Generation[State]) -> None:
        self._now = self._done = None

    def residual(self, generation: Generation[State], layer: int, hidden: Tensor) -> None:
        if self.config.ratio == 0:
            return
        if layer == 0 and generation.phase == "prompt":
            generation.state.rows = _memory(hidden, generation, generation.state.rows)
        if layer - 1 not in self.watched:
            return
        # the input of a layer is the output of the previous one
        uncertain = uncertainty(self.head(self.norm(hidden[:, -1])).float()) > self.config.threshold
        uncertain &= generation.state.rows["seen"].to(uncertain.device)
        self._now = uncertain if self._done is None else uncertain & ~self._done
        self._done = self._now if self._done is None else self._done | self._now

    def mlp_output(self, generation: Generation[State], layer: int, hidden: Tensor, output: Tensor) -> Tensor:
        if self._now is None or layer - 1 not in self.watched or not bool(self._now.any()):
            return output
        memory = generation.state.rows["memory"].to(hidden.device, torch.float32)
        valid = generation.valid(hidden.shape[1]).to(hidden.device)
        mixed = retraced(hidden.float(), output.float(), memory, valid, self.config.ratio, self.config.activation)
        return torch.where(self._now[:, None, None].to(output.device), mixed.to(output.dtype), output)

    def after_pass(self, generation: Generation[State]) -> None:
        if self._done is not None:
            generation.tally.add(self._done.float().unsqueeze(1) * self.config.ratio)


def _memory(hidden: Tensor, generation: Generation[State], earlier: dict[str, Tensor]) -> dict[str, Tensor]:
    """The visual features at the input of the first layer for each row, padded with zeros."""
    visual = generation.groups[:, -hidden.shape[1] :] == VISUAL
    rows = [hidden[r][visual[r]] for r in range(hidden.shape[0])]
    memory = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    if earlier:
        memory = torch.cat([earlier["memory"], memory], dim=1)
    return {"memory": memory, "seen": (generation.groups == VISUAL).any(1)}
