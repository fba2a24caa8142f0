"""The state of a method during one generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from heal.analysis.similarity import VisualStates
from heal.engine.tally import Tally


@dataclass(frozen=True)
class StepRecord:
    """The measurements of a method at one step: tensors [rows, layers, heads] by name, in the rows of that step."""

    values: Mapping[str, Tensor]
    refreshed: bool = False
    """Whether the head types were refreshed from this step's scores."""
    similarity: Tensor | None = None
    """Of the hidden state that the token is predicted from to the visual tokens, [rows, depths, summaries]."""


class State:
    """The state of one generation. Its rows follow the rows of the cache, and its steps follow crops of the cache.

    A method that stores more than tensors by row subclasses it and extends `select` and `crop`.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Tensor] = {}
        """Tensors whose first axis is the rows of the generation."""
        self.tally = Tally()
        """The counted changes since the prompt. The engine counts them; the method adds the sizes of its own
        quantities.
        """
        self.records: list[StepRecord] = []
        """One record per generated token, if the method measures heads and a trace was requested."""
        self.visual_states: VisualStates | None = None
        """The hidden states of the visual tokens of each sample, for traces."""

    def select(self, rows: list[int]) -> None:
        """Reorder, drop or repeat rows: the new row i is the old row `rows[i]`."""
        for name, value in self.rows.items():
            self.rows[name] = value.index_select(0, torch.tensor(rows, device=value.device))

    def crop(self, tokens: int) -> None:
        """Remove the last `tokens` generated tokens."""
        if tokens > 0:
            del self.records[-tokens:]
            self.tally.crop(tokens)
