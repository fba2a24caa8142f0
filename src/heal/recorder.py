"""Log-probabilities and times of a generation, taken from the forward passes of the model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heal.analysis.uncertainty import FACTS, distribution_facts
from heal.errors import NonFiniteError
from heal.measured import TokenValues


class Recorder:
    """Records log-probabilities of the chosen tokens and times from the forward passes of a model in this thread.

    It expects one pass per token. A search of a method knows the values of its tokens itself.
    """

    def __init__(self, model: Any, uncertainty: bool = False) -> None:
        """`uncertainty`: whether to record the `distribution_facts` as well: entropy, margin, likeliest tokens."""
        self.model = model
        self._uncertainty = uncertainty
        self.facts: list[Tensor] = []
        """Those of each pass, [rows, facts]."""
        self.thread = threading.get_ident()
        self.chosen: list[Tensor] = []
        self.last: Tensor | None = None
        self.start = self.first = 0.0

    @contextmanager
    def watching(self) -> Iterator[Recorder]:
        hooks = [
            self.model.register_forward_pre_hook(self._before, with_kwargs=True),
            self.model.register_forward_hook(self._after),
        ]
        self.start = time.perf_counter()
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is None or threading.get_ident() != self.thread:
            return  # a plain pass of another thread
        ids = kwargs.get("input_ids")
        if self.last is not None and ids is not None and ids.shape[0] == self.last.shape[0]:
            # without a cache, the input is the whole sequence, and its last token is the newest
            self.chosen.append(self.last.gather(1, ids[:, -1:].to(self.last.device))[:, 0])

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        logits = output.logits[:, -1].float()
        if not bool((logits < torch.inf).all()):  # some models forbid tokens with −inf
            raise NonFiniteError(
                f"the model's output is not finite at step {len(self.chosen)}: load it in bfloat16 or float32"
            )
        self.last = logits.log_softmax(-1)
        if self._uncertainty:
            self.facts.append(distribution_facts(self.last))
        self.first = self.first or time.perf_counter()

    def logprobs(self, row: int, ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of one row's tokens, without beams. The last token is never an input of the model."""
        past = [float(step[row]) for step in self.chosen[: len(ids)]]
        if len(past) < len(ids):
            assert self.last is not None
            past.append(float(self.last[row, ids[-1]]))
        return tuple(past)

    def values(self, row: int, ids: Sequence[int], sample: int) -> TokenValues:
        """The tokens of one row with their values. The facts must have been recorded."""
        facts = np.array([step[row].tolist() for step in self.facts[: len(ids)]], np.float32).reshape(-1, FACTS)
        logprobs = np.array(self.logprobs(row, ids), np.float32)
        return TokenValues.of_facts(logprobs, facts, ids, (row,) * len(ids), sample)
