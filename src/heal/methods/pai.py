"""PAI: more attention to the picture, and away from what the text alone would say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.counterfactual import Attended
from heal.analysis.split import VISUAL, weighted_values
from heal.engine.branches import Branch, Prompt
from heal.engine.comparison import moved
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError
from heal.methods.base import Method, register
from heal.methods.contrast import plausible
from heal.methods.counting import CountingRuntime, seeing

Preset = Literal["paper", "release"]
STRENGTHS = {"paper": (0.5, 1.1), "release": (0.2, 1.1)}


@register
@dataclass(frozen=True)
class PAI(Method):
    """Scores of visual keys are raised at the newest query, and the text-only pass is contrasted."""

    name: ClassVar[str] = "pai"
    summary: ClassVar[str] = "raises attention to the picture, contrasts with the text alone"
    paper: ClassVar[str] = (
        "Paying More Attention to Image: A Training-Free Method for Alleviating Hallucination in LVLMs (ECCV 2024)"
    )

    alpha: float | None = None
    """Visual scores s become s + alpha·|s|. None: the preset's. 0: as they are."""

    gamma: float | None = None
    """Guidance: gamma·(l − l′) + l′ with l′ from the text alone. None: the preset's. 1: none."""

    start_layer: int = 2
    """The first layer (from 0 on) whose attention is raised."""

    cutoff: float = 0.1
    """Only tokens with this share of the likeliest one's probability. 0: all. Without guidance: all."""

    preset: Preset = "paper"
    """paper: alpha 0.5, gamma 1.1, as in the reported runs; release: alpha 0.2, gamma 1.1, as the README says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset not in get_args(Preset):
            raise ConfigError(f"preset cannot be {self.preset!r}: choose paper or release")
        if not 0 <= self.strength < math.inf:
            raise ConfigError(f"alpha must be 0 or more, not {self.alpha}")
        if not 1 <= self.guidance < math.inf:
            raise ConfigError(f"gamma must be 1 or more, not {self.gamma}")
        if not isinstance(self.start_layer, int) or self.start_layer < 0:
            raise ConfigError(f"start_layer must be a whole number from 0 on, not {self.start_layer}")
        if not 0 <= self.cutoff <= 1:
            raise ConfigError(f"cutoff must lie between 0 and 1, not {self.cutoff}")

    @property
    def strength(self) -> float:
        return STRENGTHS[self.preset][0] if self.alpha is None else self.alpha

    @property
    def guidance(self) -> float:
        return STRENGTHS[self.preset][1] if self.gamma is None else self.gamma

    def runtime(self, layout: Layout, trace: bool) -> Runtime:
        if self.start_layer >= len(layout.layers):
            raise ConfigError(f"start_layer is {self.start_layer}, but the model has {len(layout.layers)} layers")
        return _PAIRuntime(self)


def raised_attention(
    at: Attended, visual: Bool[Tensor, "rows positions"], seen: Bool[Tensor, "rows positions"], strength: float
) -> tuple[Float[Tensor, "rows heads dim"], Float[Tensor, "rows heads"]]:
    """Attention with s + strength·|s| at visual positions, and the mean rise of their scores."""
    scores = at.scores()
    rise = strength * scores.abs() * visual[:, None, None]
    weights = (scores + rise).masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    size = rise.sum(-1) / visual.sum(-1).clamp(min=1)[:, None, None]
    return weighted_values(weights, at.value).flatten(1, 2), size.flatten(1)


class _PAIRuntime(CountingRuntime):
    neutral: ClassVar[Mapping[str, float]] = {"scores": 0.0, "logits": 0.0}
    idle = "alpha is 0 and gamma is 1"

    def __init__(self, config: PAI) -> None:
        self.config = config
        if config.guidance > 1:
            self.branches = (Branch("text", Prompt.without_pictures),)

    def takes_part(self, layer: int, branch: str = "") -> bool:
        return not branch and layer >= self.config.start_layer and self.config.strength > 0

    def before(self, generation: Generation) -> None:
        if generation.data is not None:
            generation.data.rows.pop("rise", None)

    def observe(self, generation: Generation, layer: int, at: Attended) -> Tensor | None:
        masks = at.regions.masks
        out, rise = raised_attention(at, masks[:, VISUAL], masks.any(1), self.config.strength)
        known = generation.data.rows.get("rise")
        generation.data.rows["rise"] = rise.mean(1) if known is None else known + rise.mean(1).to(known.device)
        return out

    def attend(self, generation: Generation, layer: int, at: Attended, plain: Callable[[], Tensor]) -> Tensor:
        out = self.observe(generation, layer, at)
        assert out is not None
        return out.unsqueeze(1)

    def logits(self, generation: Generation, logits: Tensor, others: Mapping[str, Tensor]) -> Tensor:
        scores = logits
        if self.config.guidance > 1:
            own, text = logits.log_softmax(-1), others["text"].log_softmax(-1)
            scores = plausible(self.config.guidance * (own - text) + text, logits, self.config.cutoff)
            scores = scores.where(seeing(generation).to(logits.device)[:, None], logits)
        rise = generation.data.rows.get("rise", logits.new_zeros(logits.shape[0])).to(logits.device)
        generation.tally.add(rise.unsqueeze(1), moved(scores, logits).unsqueeze(1))
        return scores
