"""Records where each head looks in the image: its attention weights on the visual tokens, in 8 bits."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

from heal.analysis.split import VISUAL
from heal.engine.attention_call import AttentionCall
from heal.errors import UnsupportedError

LEVELS = 255


class PatchRecorder:
    """The weights of the model's own passes, for each step and layer. Rows must not move, so there are no beams.

    The weights are those of the model's queries and keys, before a method changes them.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._steps: list[dict[int, tuple[Tensor, Tensor]]] = []
        """For each step, the levels [rows, heads, patches] and their unit [rows, heads] by layer."""

    def see(self, call: AttentionCall) -> None:
        """Record the weights of the newest query. The pass that repeats the last prompt position replaces its first
        reading."""
        if call.branch:
            return
        generation = call.generation
        step = 0 if generation.phase in ("prompt", "repeat") else generation.step
        if generation.phase == "prompt" and call.layer == 0:
            self._steps.clear()  # another prompt begins
        while len(self._steps) <= step:
            self._steps.append({})
        weights, visual = call.weights(slice(-1, None))[:, :, 0], _visual(call)
        rows, heads, _ = weights.shape
        own = weights.masked_select(visual[:, None].expand_as(weights)).view(rows, heads, -1)
        self._steps[step][call.layer] = packed(own)

    def found(self, row: int, steps: int) -> tuple[Tensor, Tensor]:
        """Levels [step, layer, head, patch] and units [step, layer, head] of one row."""
        if len(self._steps) < steps or any(len(own) != self.layers for own in self._steps[:steps]):
            raise UnsupportedError("the attention of some layers was not seen, so where they look is not known")
        each = [[own[layer] for layer in range(self.layers)] for own in self._steps[:steps]]
        levels = [torch.stack([pair[0][row] for pair in own]) for own in each]
        units = [torch.stack([pair[1][row] for pair in own]) for own in each]
        return torch.stack(levels), torch.stack(units)


def packed(
    weights: Float[Tensor, "rows heads patches"],
) -> tuple[UInt8[Tensor, "rows heads patches"], Float32[Tensor, "rows heads"]]:
    """Levels from 0 to 255 and the weight of one level, for each head. The error is at most half a level."""
    unit = weights.amax(-1) / LEVELS
    safe = torch.where(unit > 0, unit, 1.0)
    return (weights / safe[..., None]).round().to(torch.uint8).cpu(), unit.float().cpu()


def _visual(call: AttentionCall) -> Tensor:
    """Which keys are visual tokens, [rows, positions]. Every row must have the same number of them."""
    visual = call.groups == VISUAL
    counts = visual.sum(-1)
    if not bool((counts == counts[0]).all()) or not int(counts[0]):
        raise UnsupportedError("prompts of one call need the same number of visual tokens to record where heads look")
    return visual
