"""Detect NaN and infinity in the model's output without waiting for the device at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from heal.errors import NonFiniteError


class FiniteCheck:
    """Sums of the newest hidden states of each step, which are finite only if all of them are.

    A step costs one launch. The host looks at the sums every `PENDING` steps, when it waits for the device anyway,
    and before an answer is returned.
    """

    PENDING = 32

    def __init__(self) -> None:
        self._steps: list[tuple[int, Tensor]] = []

    def add(self, step: int, hidden: Tensor) -> None:
        """The newest position [rows, hidden] of a step. It is behind the final norm, so fp32 cannot overflow."""
        self._steps.append((step, hidden.sum(dtype=torch.float32)))
        if len(self._steps) >= self.PENDING:
            self.check()

    def check(self) -> None:
        """Raise an error for the first step whose output was not finite."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        finite = torch.stack([total for _, total in steps]).isfinite().tolist()
        if not all(finite):
            raise NonFiniteError(
                f"the model's output is not finite at step {steps[finite.index(False)][0]}: load it in bfloat16 or "
                "float32, or use the method with a lower strength"
            )

    def clear(self) -> None:
        self._steps = []
