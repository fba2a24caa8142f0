"""The state of HEAL during one generation: moments, head types, and the measurements of the current pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heal.analysis.contribution import ShiftSums
from heal.analysis.information import HeadScores
from heal.analysis.moments import Moments
from heal.analysis.noise import Noise
from heal.engine.state import State, StepRecord


@dataclass(frozen=True)
class HeadTypes:
    """Head types found at one step. They are used from the next step on."""

    step: int
    types: Tensor
    chosen: Tensor
    """The heads to calibrate."""
    least: Tensor
    """What visual and language information must exceed: the dead zone for the chosen heads, ∞ for the others."""
    active: list[bool]
    """Layers in which at least one head of one row is calibrated."""

    @cached_property
    def least_of(self) -> tuple[Tensor, ...]:
        """`least` of each layer, contiguous."""
        return self.least.transpose(0, 1).contiguous().unbind()

    def select(self, rows: list[int]) -> HeadTypes:
        index = torch.tensor(rows, device=self.types.device)
        types, chosen, least = (t.index_select(0, index) for t in (self.types, self.chosen, self.least))
        return HeadTypes(self.step, types, chosen, least, self.active)


class HealState(State):
    """Running moments, head types, and the measurements of the current pass, by layer."""

    def __init__(self, layers: int, heads: int) -> None:
        super().__init__()
        self.moments: list[Moments | None] = [None] * layers
        self.found: HeadTypes | None = None
        self.noises: dict[torch.device, Noise] = {}
        self.prompt_contribution: Tensor | None = None
        self.prompt_scores: list[Tensor | None] = [None] * layers
        """Scores of the first token if no position is repeated, with the draw that the repeated one would use."""
        self.refresh = False
        self._layers, self._heads = layers, heads
        self._step = 0
        self._earlier: list[tuple[HeadTypes, list[int]]] = []  # with the present rows as indices into its own
        self.clear()

    def clear(self) -> None:
        """Drop the measurements of the previous pass."""
        self.scores: list[Tensor | None] = [None] * self._layers
        """Visual, language and total information, [rows, heads, 3]."""
        self.moved: list[Tensor | ShiftSums | None] = [None] * self._layers
        """Contributions as the layers leave them."""
        self.contributions: list[Tensor | None] = [None] * self._layers
        self.streams: list[Tensor | None] = [None] * self._layers
        self.factors: list[Tensor | None] = [None] * self._layers
        """β and γ, [rows, heads, 2]."""
        self.visual_share: list[Tensor | None] = [None] * self._layers
        """The share of attention on visual positions, [rows, heads]. For traces only."""

    def begin_pass(self, step: int, refresh: bool) -> None:
        self.clear()
        self._step, self.refresh = step, refresh

    def refreshed(self, found: HeadTypes) -> None:
        """Use new types. The old ones are kept for a crop to a position before this step."""
        if self.found is not None:
            self._earlier.append((self.found, list(range(len(self.found.types)))))
        self.found = found

    def active(self, layer: int) -> bool:
        return self.found is not None and self.found.active[layer]

    def select(self, rows: list[int]) -> None:
        """Reorder everything that is carried from step to step, as beam search reorders its rows."""
        super().select(rows)
        if self.found is None:
            return
        self.found = self.found.select(rows)
        self._earlier = [(found, [own[row] for row in rows]) for found, own in self._earlier]
        index = torch.tensor(rows)
        self.moments = [None if m is None else m.select(index.to(m.count.device)) for m in self.moments]

    def crop(self, tokens: int) -> None:
        super().crop(tokens)
        self._step -= tokens
        self.moments = [None] * self._layers  # recomputed from the cache
        while self.found is not None and self.found.step > self._step and self._earlier:
            found, rows = self._earlier.pop()
            self.found = found.select(rows)

    # ── all layers as one tensor ──────────────────────────────────────────────────────────────────────

    def stack(self, layers: Sequence[Tensor | None], rows: int, missing: float = torch.nan) -> Tensor:
        """[rows, layers, heads, …] on the device of the first layer that has values."""
        known = next((t for t in layers if t is not None), None)
        if known is None:
            return torch.full((rows, len(layers), self._heads), missing)
        if any(t is None for t in layers):
            blank = torch.full_like(known, missing)
            layers = [blank if t is None else t for t in layers]
        return torch.stack([t.to(known.device) for t in layers if t is not None], dim=1)

    def both_factors(self, rows: int, missing: float = torch.nan) -> tuple[Tensor, Tensor]:
        """β and γ of all layers, each [rows, layers, heads]."""
        if all(t is None for t in self.factors):
            blank = torch.full((rows, self._layers, self._heads), missing)
            return blank, blank
        beta, gamma = self.stack(self.factors, rows, missing).unbind(-1)
        return beta, gamma

    def stack_scores(self, scores: Sequence[Tensor | None], rows: int) -> HeadScores:
        if all(t is None for t in scores):
            return HeadScores(*torch.full((3, rows, self._layers, self._heads), torch.nan))
        return HeadScores(*self.stack(scores, rows).float().unbind(-1))

    def record(self, rows: int, first: bool, prompt: bool, similarity: Tensor | None) -> StepRecord:
        """The measurements of this pass. `first`: of the first token; `prompt`: taken while the prompt was read."""
        assert self.found is not None
        scores = self.stack_scores(self.prompt_scores if prompt else self.scores, rows)
        contributions = self.prompt_contribution if first else self.stack(self.contributions, rows)
        assert contributions is not None
        beta, gamma = self.both_factors(rows)
        values = {
            "visual": scores.visual,
            "language": scores.language,
            "total": scores.total,
            "contribution": contributions,
            "beta": beta.float(),
            "gamma": gamma.float(),
            "visual_attention": self.stack(self.visual_share, rows).float(),
            "types": self.found.types,
        }
        return StepRecord(
            {name: value.cpu() for name, value in values.items()},
            refreshed=first or self.refresh,
            similarity=None if similarity is None else similarity.cpu(),
        )
