"""VAR: move the attention of image-centric heads from sink tokens to the other visual tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heal.analysis.split import VISUAL
from heal.engine.attention_call import AttentionCall
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.engine.state import State
from heal.errors import ConfigError
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.counting import CountingRuntime

SINK_DIMENSIONS = {
    ("llama", 4096, 32): (1415, 2533),
    ("llama", 5120, 40): (2100, 4743),
    ("qwen2_vl_text", 3584, 4): (458, 2570),
}
"""Published dimensions of massive activations, by type, hidden size and key/value heads of the language model:
LLaMA-2 and Vicuna 7B and 13B, and Qwen2-VL 7B."""
FOUND = 2
"""Number of dimensions taken from the first token if none are published."""
FIRST_LAYER = 2


@register
@dataclass(frozen=True)
class VAR(Method):
    """Visual attention redistribution: move attention from sink tokens to visual tokens in image-centric heads."""

    name: ClassVar[str] = "var"
    summary: ClassVar[str] = "moves attention from sink tokens to the other visual tokens"
    paper: ClassVar[str] = "See What You Are Told: Visual Attention Sink in Large Multimodal Models (ICLR 2025)"

    strength: float = 0.4
    """Share of the attention on sinks that is moved. 0: none. The published configuration uses 0.4."""

    rho: float = 0.5
    """Minimum share of an image-centric head's visual attention on non-sink tokens. The paper uses 0.5 against
    hallucination, 0.8 for general questions and 0.9 for vision-centric ones."""

    least: float = 0.2
    """Minimum share of an image-centric head's attention on visual tokens."""

    threshold: float = 20.0
    """A token is a sink if a sink dimension exceeds this multiple of the root mean square of its hidden state."""

    dimensions: tuple[int, ...] | None = None
    """Sink dimensions of the hidden state. None: the published ones, or the two largest of the first token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction(self, "strength", "rho", "least")
        checks.at_least(self, 0, "threshold")
        if self.dimensions is not None and (not self.dimensions or min(self.dimensions) < 0):
            raise ConfigError(f"dimensions must name at least one entry of the hidden state, not {self.dimensions}")

    def sink_dimensions(self, layout: Layout) -> tuple[int, ...] | None:
        text = layout.model.config.get_text_config()
        size = text.hidden_size
        if self.dimensions is not None and max(self.dimensions) >= size:
            raise ConfigError(f"dimensions names {max(self.dimensions)}, but hidden states have {size} entries")
        return self.dimensions or SINK_DIMENSIONS.get((text.model_type, size, text.num_key_value_heads))

    def runtime(self, layout: Layout, trace: bool) -> Runtime[State]:
        if len(layout.layers) <= FIRST_LAYER:
            raise ConfigError(f"VAR changes layers from {FIRST_LAYER} on, but the model has {len(layout.layers)}")
        return _VARRuntime(self, layout)


def sink_tokens(
    hidden: Float[Tensor, "rows positions size"], dimensions: Tensor, threshold: float
) -> Bool[Tensor, "rows positions"]:
    """Tokens whose hidden state has a massive activation in `dimensions` [rows, some]."""
    hidden = hidden.float()
    size = hidden.square().mean(-1).sqrt()
    chosen = hidden.abs().gather(-1, dimensions[:, None].expand(-1, hidden.shape[1], -1))
    return chosen.amax(-1) > threshold * size


def redistributed(
    weights: Float[Tensor, "rows heads queries positions"],
    visual: Bool[Tensor, "rows positions"],
    sinks: Bool[Tensor, "rows positions"],
    queries: Bool[Tensor, "rows queries"],
    config: VAR,
) -> tuple[Float[Tensor, "rows heads queries positions"], Float[Tensor, "rows heads queries"]]:
    """New weights with the same sum, and how much was moved in each row."""
    image, sink = (mask[:, None, None] for mask in (visual, sinks))
    on_image = (weights * image).sum(-1)
    on_others = (weights * (image & ~sink)).sum(-1)
    selected = (on_image >= config.least) & (on_others >= config.rho * on_image) & (on_others > 0)
    selected &= queries[:, None]
    freed = config.strength * (weights * sink).sum(-1) * selected
    gain = 1 + freed / on_others.clamp(min=torch.finfo(weights.dtype).tiny)
    new = torch.where(sink, weights * (1 - config.strength), torch.where(image, weights * gain[..., None], weights))
    return torch.where((freed > 0)[..., None], new, weights), freed


class _VARRuntime(CountingRuntime):
    neutral: ClassVar[Mapping[str, float]] = {"moved": 0.0}
    idle = "strength is 0, no token was a sink, or no head was image-centric"

    def __init__(self, config: VAR, layout: Layout) -> None:
        self.config = config
        self.dimensions = config.sink_dimensions(layout)
        self.layers = range(FIRST_LAYER, max(FIRST_LAYER + 1, len(layout.layers) - 1))
        self._moved: list[Tensor] = []

    def begin(self, generation: Generation[State], earlier: State | None) -> State:
        state = State()
        state.rows |= earlier.rows if earlier is not None else {}  # keep the sinks of earlier turns
        return state

    def before_pass(self, generation: Generation[State]) -> None:
        self._moved.clear()

    def residual(self, generation: Generation[State], layer: int, hidden: Tensor) -> None:
        """Find the sink tokens, once per prompt."""
        if generation.phase != "prompt" or layer not in self.layers or self.config.strength == 0:
            return
        rows, name = generation.state.rows, f"sinks {layer}"
        valid = generation.valid(hidden.shape[1]).to(hidden.device)
        found = sink_tokens(hidden, self._dimensions(generation, layer, hidden, valid), self.config.threshold) & valid
        before = rows.get(name, found[:, :0])
        gap = found.new_zeros(len(found), generation.length - before.shape[1] - found.shape[1])
        rows[name] = torch.cat([before, gap, found], dim=1)

    def _dimensions(self, generation: Generation[State], layer: int, hidden: Tensor, valid: Tensor) -> Tensor:
        """[rows, some]: the given dimensions, or the largest of each conversation's first token."""
        rows, name = generation.state.rows, f"dimensions {layer}"
        if self.dimensions is not None:
            return torch.tensor(self.dimensions, device=hidden.device).expand(len(hidden), -1)
        if name not in rows:
            first = hidden[torch.arange(len(hidden), device=hidden.device), valid.to(torch.uint8).argmax(1)]
            rows[name] = first.abs().topk(FOUND, dim=-1).indices
        return rows[name]

    def attention(self, generation: Generation[State], call: AttentionCall, plain: Callable[[], Tensor]) -> Tensor:
        sinks = generation.state.rows.get(f"sinks {call.layer}")
        if sinks is None or not bool(sinks.any()):
            return plain()
        after = generation.length - sinks.shape[1]  # generated tokens are never sinks
        sinks = torch.nn.functional.pad(sinks, (0, after))[:, -call.positions :].to(call.key.device)
        visual = call.groups == VISUAL
        queries = self._queries(generation, call)
        out, moved = plain(), torch.zeros(call.query.shape[:2], device=call.query.device)
        for block in call.blocks():
            if not bool(queries[:, block].any()):
                continue
            weights = call.weights(block)
            new, freed = redistributed(weights, visual, sinks, queries[:, block], self.config)
            changed = (freed > 0).transpose(1, 2)[..., None]
            if bool(changed.any()):
                if out is plain():
                    out = out.clone()
                out[:, block] = torch.where(changed, call.combine(new).to(out.dtype), out[:, block])
            if block.stop == call.queries:
                moved = freed[:, :, -1]
        self._moved.append(moved)
        return out

    def _queries(self, generation: Generation[State], call: AttentionCall) -> Tensor:
        """[rows, queries] the queries to change: text after an image, and generated tokens."""
        visual = generation.groups == VISUAL
        after = (visual.cumsum(1) > 0) & ~visual
        return after[:, -call.queries :].to(call.key.device)

    def after_pass(self, generation: Generation[State]) -> None:
        if self._moved and not generation.branch:
            device = self._moved[0].device
            generation.tally.add(torch.stack([moved.to(device) for moved in self._moved], dim=1))
