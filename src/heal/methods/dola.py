"""DoLa: contrast the last layer's distribution with that of an earlier layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from heal.engine.comparison import moved
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.errors import ConfigError
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.contrast import plausible
from heal.methods.counting import CountingRuntime

Bucket = Literal["low", "high", "all"]
Divergence = Literal["js", "release"]


@register
@dataclass(frozen=True)
class DoLa(Method):
    """Contrast the last layer with the layer that disagrees most with it, at every step."""

    name: ClassVar[str] = "dola"
    summary: ClassVar[str] = "contrasts the last layer with an earlier one"
    paper: ClassVar[str] = (
        "DoLa: Decoding by Contrasting Layers Improves Factuality in Large Language Models (ICLR 2024)"
    )

    bucket: Bucket = "low"
    """Candidate layers: every second layer of the lower half (for long answers), of the upper half, or of all."""

    layers: tuple[int, ...] | None = None
    """Candidate layers by index: 0 is the embedding, i the output of block i. None: use `bucket`."""

    strength: float = 1.0
    """Weight of the earlier layer's log-probability. 0: no contrast."""

    relative_top: float = 0.1
    """Keep tokens with at least this share of the highest probability. 0: all."""

    divergence: Divergence = "js"
    """Measure of disagreement: the Jensen–Shannon divergence of the paper, or the formula of the released code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, Bucket, "bucket")
        checks.one_of(self, Divergence, "divergence")
        checks.at_least(self, 0, "strength")
        checks.fraction(self, "relative_top")
        checks.layer_list(self)

    def candidates(self, layout: Layout) -> tuple[int, ...]:
        """The candidate layers in this model."""
        count = len(layout.layers)
        if self.layers is not None:
            checks.layers_exist(self, count)
            return self.layers
        half = count // 2
        # with tied embeddings, layer 0 predicts the input token
        tied = layout.model.get_output_embeddings().weight is layout.model.get_input_embeddings().weight
        low = range(2 if tied else 0, half if count <= 40 else 20, 2)
        high = range(half if count <= 40 else count - 20, count, 2)
        found = {"low": (*low,), "high": (*high,), "all": (*low, *high)}[self.bucket]
        if not found:
            raise ConfigError(
                f"a model with {count} layers has no candidate layers in the {self.bucket} bucket: give layers"
            )
        return found

    def runtime(self, layout: Layout, trace: bool) -> Runtime[State]:
        return _DoLaRuntime(self, layout)


def disagreement(
    last: Float[Tensor, "rows vocabulary"], early: Float[Tensor, "layers rows vocabulary"], kind: Divergence
) -> Float[Tensor, "layers rows"]:
    """Divergence between log-probabilities. `release` swaps the arguments: KL(M‖·)."""
    middle = torch.log((last.exp() + early.exp()) / 2)
    if kind == "js":
        return ((last.exp() * (last - middle)).sum(-1) + (early.exp() * (early - middle)).sum(-1)) / 2
    weight = middle.exp()
    return ((weight * (middle - last)).sum(-1) + (weight * (middle - early)).sum(-1)) / 2


class _DoLaRuntime(CountingRuntime):
    needs_image = False
    last_position_only = True

    def __init__(self, config: DoLa, layout: Layout) -> None:
        self.config = config
        self.candidates = config.candidates(layout)
        self.head = layout.model.get_output_embeddings()
        self._streams: dict[int, Tensor] = {}

    def residual(self, generation: Generation[State], layer: int, hidden: Tensor) -> None:
        # the input of block i (counted from 0) is the output of block i (counted from 1)
        if layer in self.candidates and self.config.strength > 0:
            self._streams[layer] = hidden[:, -1]

    def logits(self, generation: Generation[State], logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        config = self.config
        if config.strength == 0 and config.relative_top == 0:
            return logits
        last = logits.log_softmax(-1)
        scores = last
        if config.strength > 0:
            hidden = torch.stack([self._streams.pop(layer).to(logits.device) for layer in self.candidates])
            early = self.head(hidden).float().log_softmax(-1)
            chosen = disagreement(last, early, config.divergence).argmax(0)
            rows = torch.arange(logits.shape[0], device=logits.device)
            scores = last - config.strength * early[chosen, rows]
        scores = plausible(scores, logits, config.relative_top)
        generation.tally.add(moved(scores, logits).unsqueeze(1))
        return scores
