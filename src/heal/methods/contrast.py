"""Contrasts of next-token scores: pure functions, and the runtime that contrasts with one branch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from heal.engine.branches import Branch
from heal.engine.comparison import moved
from heal.engine.generation import Generation
from heal.engine.state import State
from heal.methods.counting import CountingRuntime, seeing


def contrast(
    logits: Float[Tensor, "rows vocabulary"], other: Float[Tensor, "rows vocabulary"], strength: float
) -> Float[Tensor, "rows vocabulary"]:
    """(1 + a)·l − a·l′, where l′ are the logits of the other pass."""
    return (1 + strength) * logits - strength * other


def plausible(
    scores: Float[Tensor, "rows vocabulary"], logits: Float[Tensor, "rows vocabulary"], share: float
) -> Float[Tensor, "rows vocabulary"]:
    """Keep tokens with at least `share` of the highest probability under `logits`. 0 keeps all."""
    if share <= 0:
        return scores
    least = logits.amax(-1, keepdim=True) + math.log(share)
    return scores.masked_fill(logits < least, -torch.inf)


class ContrastRuntime(CountingRuntime):
    """Contrasts the model's logits with those of one branch: (1 + a)·l − a·l′ among the plausible tokens."""

    def __init__(self, strength: float, cutoff: float, branch: Branch) -> None:
        self.strength, self.cutoff, self.name = strength, cutoff, branch.name
        if strength > 0:
            self.branches = (branch,)

    def logits(self, generation: Generation[State], logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        if self.strength == 0 and self.cutoff == 0:
            return logits
        scores = contrast(logits, branches[self.name], self.strength) if self.strength > 0 else logits
        scores = plausible(scores, logits, self.cutoff)
        scores = scores.where(seeing(generation).to(logits.device)[:, None], logits)
        generation.tally.add(moved(scores, logits).unsqueeze(1))
        return scores
