"""Hidden states that a trace compares with those of the visual tokens of the prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heal.analysis.similarity import VisualStates
from heal.analysis.split import VISUAL
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.state import State


class SimilarityStage:
    """Collects the hidden states of a pass at each of `heal.analysis.depths.DEPTHS`."""

    def __init__(self, layout: Layout) -> None:
        self._layers = (0, len(layout.layers) // 2)
        self._hidden: list[Tensor] = []

    def begin_pass(self) -> None:
        self._hidden.clear()

    def residual(self, layer: int, hidden: Tensor) -> None:
        """The input of a layer. In a model with one layer, its input counts twice."""
        self._hidden += [hidden] * self._layers.count(layer)

    def final_hidden(self, hidden: Tensor) -> None:
        self._hidden.append(hidden)

    def read_prompt(self, generation: Generation[Any], earlier: VisualStates | None) -> VisualStates | None:
        """The states of the visual tokens, once for each sample: other rows are copies."""
        samples = generation.samples
        # a sample without rows is never asked for again
        rows = [samples.index(sample) if sample in samples else 0 for sample in range(max(samples) + 1)]
        length = self._hidden[-1].shape[1]
        visual = (generation.groups[:, -length:] == VISUAL) & generation.valid(length)
        found = VisualStates.of([states[rows] for states in self._hidden], visual[rows])
        if earlier is None or len(earlier.unit) != len(found.unit):
            return found
        return earlier.joined(found)

    def compared(self, generation: Generation[Any]) -> Tensor | None:
        """The similarity of the newest position, [rows, depths, summaries]."""
        state: State = generation.state
        if state.visual_states is None:
            return None
        device = self._hidden[-1].device
        newest = torch.stack([states[:, -1].to(device) for states in self._hidden], dim=1)
        return state.visual_states.compared(newest, generation.samples)
