"""PAI: raise attention to the image, and contrast with the text-only prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.counterfactual import Attended
from heal.analysis.split import VISUAL, weighted_values
from heal.engine.attention_call import AttentionCall
from heal.engine.branches import Branch, Prompt
from heal.engine.comparison import moved
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.contrast import plausible
from heal.methods.counting import CountingRuntime, seeing

Preset = Literal["paper", "release"]
STRENGTHS = {"paper": (0.5, 1.1), "release": (0.2, 1.1)}


@register
@dataclass(frozen=True)
class PAI(Method):
    """Raise the scores of visual keys at the newest query, and contrast with a text-only pass."""

    name: ClassVar[str] = "pai"
    summary: ClassVar[str] = "raises attention to the image, contrasts with the text-only prompt"
    paper: ClassVar[str] = (
        "Paying More Attention to Image: A Training-Free Method for Alleviating Hallucination in LVLMs (ECCV 2024)"
    )

    alpha: float | None = None
    """Visual scores s become s + alpha·|s|. None: from the preset. 0: unchanged."""

    gamma: float | None = None
    """Guidance: gamma·(l − l′) + l′ with l′ from the text-only prompt. None: from the preset. 1: no guidance."""

    start_layer: int = 2
    """The first layer, counted from 0, whose attention is raised."""

    cutoff: float = 0.1
    """Keep tokens with at least this share of the highest probability. 0, or no guidance: all."""

    preset: Preset = "paper"
    """paper: alpha 0.5, gamma 1.1, as in the reported runs; release: alpha 0.2, gamma 1.1, as in the README."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(self, Preset, "preset")
        checks.at_least(self, 0, "alpha")
        checks.at_least(self, 1, "gamma")
        checks.whole(self, 0, "start_layer")
        checks.fraction(self, "cutoff")

    @property
    def strength(self) -> float:
        return STRENGTHS[self.preset][0] if self.alpha is None else self.alpha

    @property
    def guidance(self) -> float:
        return STRENGTHS[self.preset][1] if self.gamma is None else self.gamma

    @property
    def passes_per_token(self) -> float:
        return 1.0 if self.guidance == 1 else 2.0

    def runtime(self, layout: Layout, trace: bool) -> Runtime[State]:
        checks.layers_exist(self, len(layout.layers), "start_layer")
        return _PAIRuntime(self)


def raised_attention(
    at: Attended, visual: Bool[Tensor, "rows positions"], seen: Bool[Tensor, "rows positions"], strength: float
) -> tuple[Float[Tensor, "rows heads dim"], Float[Tensor, "rows heads"]]:
    """Attention with s + strength·|s| at visual positions, and the mean increase of their scores."""
    scores = at.scores()
    rise = strength * scores.abs() * visual[:, None, None]
    weights = (scores + rise).masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    size = rise.sum(-1) / visual.sum(-1).clamp(min=1)[:, None, None]
    return weighted_values(weights, at.value).flatten(1, 2), size.flatten(1)


class _PAIRuntime(CountingRuntime):
    last_position_only = True
    neutral: ClassVar[Mapping[str, float]] = {"scores": 0.0, "logits": 0.0}
    idle = "alpha is 0 and gamma is 1"

    def __init__(self, config: PAI) -> None:
        self.config = config
        if config.guidance > 1:
            self.branches = (Branch("text", Prompt.without_images),)

    def before_pass(self, generation: Generation[State]) -> None:
        generation.state.rows.pop("rise", None)

    def attention(self, generation: Generation[State], call: AttentionCall, plain: Callable[[], Tensor]) -> Tensor:
        if call.branch or call.layer < self.config.start_layer or self.config.strength == 0:
            return plain()
        masks, rows = call.regions.masks, generation.state.rows
        out, rise = raised_attention(call.newest, masks[:, VISUAL], masks.any(1), self.config.strength)
        known = rows.get("rise")
        rows["rise"] = rise.mean(1) if known is None else known + rise.mean(1).to(known.device)
        return call.with_newest(out)

    def logits(self, generation: Generation[State], logits: Tensor, branches: Mapping[str, Tensor]) -> Tensor:
        scores = logits
        if self.config.guidance > 1:
            own, text = logits.log_softmax(-1), branches["text"].log_softmax(-1)
            scores = plausible(self.config.guidance * (own - text) + text, logits, self.config.cutoff)
            scores = scores.where(seeing(generation).to(logits.device)[:, None], logits)
        rise = generation.state.rows.get("rise", logits.new_zeros(logits.shape[0])).to(logits.device)
        generation.tally.add(rise.unsqueeze(1), moved(scores, logits).unsqueeze(1))
        return scores
