"""SID: contrast with a pass that sees only the least attended visual tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.split import VISUAL
from heal.engine.attention_call import AttentionCall
from heal.engine.branches import Branch, Prompt
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.contrast import ContrastRuntime

Preset = Literal["paper", "release"]
STRENGTHS = {"paper": 1.0, "release": 0.5}
SHARE = 100 / 576
"""The published POPE runs keep 100 of the 576 visual tokens of LLaVA-1.5."""


@register
@dataclass(frozen=True)
class SID(Method):
    """Self-introspective decoding: contrast with a second pass that keeps only the least attended visual tokens."""

    name: ClassVar[str] = "sid"
    summary: ClassVar[str] = "contrasts with a pass that sees the least attended visual tokens"
    paper: ClassVar[str] = (
        "Self-Introspective Decoding: Alleviating Hallucinations for Large Vision-Language Models (ICLR 2025)"
    )

    alpha: float | None = None
    """Strength of the contrast: (1 + alpha)·l − alpha·l′. None: from the preset. 0: no contrast."""

    beta: float = 0.1
    """Keep tokens with at least this share of the highest probability. 0: all."""

    layer: int = 2
    """The first layer of the second pass, counted from 0, that drops visual tokens. The attention of the previous
    layer selects them."""

    keep: int | None = None
    """Visual tokens to keep for each row of the second pass. None: 100 of every 576."""

    preset: Preset = "paper"
    """paper: alpha 1; release: alpha 0.5, which the published scripts use because they do not pass alpha on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, Preset, "preset")
        checks.at_least(self, 0, "alpha")
        checks.fraction(self, "beta")
        checks.whole(self, 1, "layer", "keep")

    @property
    def strength(self) -> float:
        return STRENGTHS[self.preset] if self.alpha is None else self.alpha

    @property
    def passes_per_token(self) -> float:
        return 2.0

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        checks.layers_exist(self, len(layout.layers), "layer")
        return _SIDRuntime(self)


def least_attended(
    weights: Float[Tensor, "rows positions"], visual: Bool[Tensor, "rows positions"], keep: int | None
) -> Bool[Tensor, "rows positions"]:
    """The `keep` visual positions with the lowest weights for each row. Ties go to the earlier position."""
    counts = visual.sum(1)
    wanted = (counts * SHARE).round().long().clamp(min=1) if keep is None else torch.full_like(counts, keep)
    rank = weights.masked_fill(~visual, torch.inf).argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    return visual & (rank < wanted[:, None])


class _SIDRuntime(ContrastRuntime):
    def __init__(self, config: SID) -> None:
        super().__init__(config.strength, config.beta, Branch("least attended", Prompt.unchanged))
        self.config = config
        self._seen: Tensor | None = None

    def attention(self, generation: Generation[Any], call: AttentionCall, plain: Callable[[], Tensor]) -> Tensor:
        if not call.branch:
            return plain()
        if call.layer == self.config.layer - 1:
            self._seen = self._kept(call)
        if call.layer < self.config.layer:
            return plain()
        assert self._seen is not None
        keep = self._seen[:, -call.positions :].to(call.key.device)
        return plain() if bool(keep.all()) else call.attend(keep=keep[:, None, None])

    def _kept(self, call: AttentionCall) -> Tensor:
        """[rows, length] the positions that the following layers may attend."""
        visual = call.regions.masks[:, VISUAL]
        weights = call.weights(slice(-1, None)).mean(1)[:, 0]
        seen = torch.ones(call.generation.groups.shape, dtype=torch.bool, device=visual.device)
        seen[:, -call.positions :] = ~visual | least_attended(weights, visual, self.config.keep)
        return seen
