"""Measure quantities of a layer that a trace does not have, while HEAL measures or calibrates the heads.

`observed(vlm, method, observe, …)` generates with HEAL and calls a function at every layer of chosen decoding steps,
with the queries, keys, values, scores, types and the residual stream of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from heal.analysis.counterfactual import Attended
from heal.analysis.moments import Moments
from heal.bench.tasks.base import Sample
from heal.engine.attention_call import AttentionCall
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.generate import Answer
from heal.methods.heal import HEAL
from heal.methods.heal_runtime import INFORMATION, HealRuntime
from heal.methods.heal_scores import ScoreStage
from heal.methods.heal_state import HealState
from heal.vlm import VLM


@dataclass(frozen=True, eq=False)
class AtLayer:
    """One layer at one decoding step, of all rows."""

    layout: Layout
    layer: int
    step: int
    """The index of the token that this step generates."""
    at: Attended
    """The newest query, with all keys and values. Not calibrated."""
    scores: Float[Tensor, "rows heads three"]
    """Visual, language and total information."""
    types: UInt8[Tensor, "rows heads"]
    """The types in effect."""
    residual: Float[Tensor, "rows hidden"]
    """The stream that enters the layer."""
    heads: Float[Tensor, "rows heads dim"]
    """The head outputs that o_proj reads, calibrated or not."""
    output: Float[Tensor, "rows hidden"]
    """The output of o_proj."""
    projection: nn.Module
    rescore: Callable[[Attended], Float[Tensor, "rows heads three"]]
    """The scores of other keys and values, with the same noise."""


Observe = Callable[[AtLayer], Mapping[str, Tensor]]
"""Returns tensors [rows, …] with the same names and shapes at every layer."""


@dataclass(frozen=True)
class Observing(HEAL):
    """HEAL with a function that observes its layers. It is used by studies only, and has no name for users."""

    name: ClassVar[str] = "heal"
    observe: Observe = field(default=lambda at: {}, repr=False, compare=False, kw_only=True)
    every: int = field(default=1, kw_only=True)
    """Observe the steps 1, 1 + N, 1 + 2N …"""

    def __post_init__(self) -> None:
        for own in fields(HEAL):
            assert hasattr(self, own.name)
        HEAL(**{own.name: getattr(self, own.name) for own in fields(HEAL)})  # the same checks

    @classmethod
    def of(cls, method: HEAL, observe: Observe, every: int) -> Observing:
        options = {own.name: getattr(method, own.name) for own in fields(HEAL)}
        return cls(**options, observe=observe, every=every)

    def runtime(self, layout: Layout, trace: bool) -> ObservingRuntime:
        return ObservingRuntime(self, layout, trace)


class ObservingRuntime(HealRuntime):
    """Calls the function after o_proj, when everything about the layer is known."""

    def __init__(self, config: Observing, layout: Layout, trace: bool) -> None:
        super().__init__(config, layout, trace)
        self.observing = config
        self.steps: list[tuple[int, dict[str, Tensor]]] = []
        """The observed steps with their values [rows, layers, …]."""
        self._stage = ScoreStage(config)
        self._stream: Tensor | None = None
        self._call: AttentionCall | None = None
        self._layers: list[Mapping[str, Tensor]] = []

    def _observed(self, generation: Generation[HealState]) -> bool:
        step = generation.step
        return generation.phase == "decode" and step % self.observing.every == 1 % self.observing.every

    def begin(self, generation: Generation[HealState], earlier: HealState | None) -> HealState:
        self.steps.clear()
        return super().begin(generation, earlier)

    def residual(self, generation: Generation[HealState], layer: int, hidden: Tensor) -> None:
        super().residual(generation, layer, hidden)
        self._stream = hidden[:, -1]

    def attention(
        self, generation: Generation[HealState], call: AttentionCall, plain: Callable[[], Tensor]
    ) -> Tensor:
        self._call = call
        return super().attention(generation, call, plain)

    def projected(
        self, generation: Generation[HealState], layer: int, heads: Tensor, output: Tensor, projection: nn.Module
    ) -> None:
        super().projected(generation, layer, heads, output, projection)
        state = generation.state
        scores = state.scores[layer]
        if not self._observed(generation) or scores is None or state.found is None:
            return
        assert self._call is not None
        assert self._stream is not None
        found = self.observing.observe(
            AtLayer(
                self.layout,
                layer,
                generation.step,
                self._call.newest,
                scores.float(),
                state.found.types[:, layer],
                self._stream.float(),
                heads[:, -1].unflatten(-1, (self.layout.heads, -1)).float(),
                output[:, -1].float(),
                projection,
                lambda at: self._rescored(generation, layer, at),
            )
        )
        self._layers.append({name: value.detach().cpu() for name, value in found.items()})

    def _rescored(self, generation: Generation[HealState], layer: int, at: Attended) -> Tensor:
        moments = Moments.of(at.key, at.value, at.regions)
        noise = None if self._stage.expected else self._noise(generation, layer, at.query.device).at(INFORMATION)
        return self._stage.of(at, moments, noise).float()

    def after_pass(self, generation: Generation[HealState]) -> None:
        super().after_pass(generation)
        if self._layers:
            names = self._layers[0]
            self.steps.append(
                (generation.step, {name: torch.stack([own[name] for own in self._layers], 1) for name in names})
            )
            self._layers = []


@dataclass(frozen=True, eq=False)
class Observed:
    """An answer with what was observed at some of its steps."""

    answer: Answer
    steps: list[int]
    values: dict[str, Tensor]
    """[step, layer, …] by name."""


def observed(
    vlm: VLM,
    method: HEAL,
    observe: Observe,
    samples: Sequence[Sample],
    every: int,
    force: Sequence[Sequence[int]] | None = None,
    **options: Any,
) -> list[Observed]:
    """Answer the samples greedily and observe them. `force` gives the tokens that each answer must have."""
    observing = Observing.of(method, observe, every)
    if force is not None:
        options["logits_processor"] = [Forced(force, vlm.tokenizer.pad_token_id)]
    with observing.attach(vlm.model, trace=True, special_ids=vlm.tokenizer.all_special_ids) as handle:
        answers = vlm.generate(
            [sample.image() for sample in samples],
            [sample.prompt for sample in samples],
            do_sample=False,
            num_beams=1,
            **options,
        )
        runtime = handle.runtime
        assert isinstance(runtime, ObservingRuntime)
        return [_of_row(row, answer, runtime.steps) for row, answer in enumerate(answers)]


def _of_row(row: int, answer: Answer, steps: Sequence[tuple[int, Mapping[str, Tensor]]]) -> Observed:
    """The steps that generated a token of this answer."""
    own = [(step, values) for step, values in steps if step < len(answer.token_ids)]
    names = own[0][1] if own else {}
    return Observed(answer, [s for s, _ in own], {n: torch.stack([v[n][row] for _, v in own]) for n in names})


class Forced:
    """A logits processor that allows one token per row and step. The end of a row is padding."""

    def __init__(self, tokens: Sequence[Sequence[int]], padding: int) -> None:
        self.tokens, self.padding = tokens, padding
        self._step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        wanted = [row[self._step] if self._step < len(row) else self.padding for row in self.tokens]
        self._step += 1
        out = torch.full_like(scores, -torch.inf)
        out[torch.arange(len(wanted)), wanted] = 0.0
        return out
