"""HEAL during a generation: measure and calibrate the heads of each layer at each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heal.analysis.calibration import joint_factors
from heal.analysis.contribution import causally_redundant
from heal.analysis.counterfactual import Attended, GaussianDraw
from heal.analysis.information import DEAD_ZONE
from heal.analysis.moments import Moments
from heal.analysis.noise import Noise
from heal.analysis.reference import reference_output
from heal.analysis.split import LANGUAGE, VISUAL
from heal.analysis.step import LayerStep, compiled_step
from heal.analysis.taxonomy import HeadMap, HeadType, classify
from heal.engine.attention_call import AttentionCall
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError, HealWarning
from heal.methods.heal import HEAL
from heal.methods.heal_causal import CausalStage
from heal.methods.heal_fused import FusedFunctions, find
from heal.methods.heal_scores import ScoreStage
from heal.methods.heal_similarity import SimilarityStage
from heal.methods.heal_state import HeadTypes, HealState

INFORMATION, CAUSAL, CHOICE, ORDER = 0, 1, 2, 3  # noise addresses


class HealRuntime(Runtime[HealState]):
    neutral: ClassVar[Mapping[str, float]] = {"beta": 1.0, "gamma": 1.0}

    def __init__(self, config: HEAL, layout: Layout, trace: bool) -> None:
        self.config = config
        self.layout = layout
        self.targets = config.targets(layout)
        self.trace = trace
        self.last_position_only = not trace  # a trace compares the hidden states of the visual tokens
        self.similarity = SimilarityStage(layout) if trace else None
        self.group_count = 3 if config.sinks == "neutral" else 2
        self.repeats_last_position = config.calibrate
        self.changes_output = config.calibrate
        self.stage = ScoreStage(config)
        self._fast = config.path != "reference"
        self.fell_back: str | None = None
        """Why compiled functions were not used somewhere, though the path allows them."""
        self.fused = self._find_fused()
        self.causal = CausalStage(config, layout, self.fused)
        self._pairs: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}
        self._orders: dict[tuple[int, torch.device], Tensor] = {}
        count = len(layout.layers)
        self._part = [config.layers is None or i in config.layers for i in range(count)]

    # ── passes ────────────────────────────────────────────────────────────────────────────────────────

    def check_rows(self, samples: int, copies: int) -> None:
        if copies > 1 and "swap" in (self.config.noise, self.config.replaced_by):
            raise ConfigError(
                "swap takes values from another sample, but with beams or several return sequences the rows are "
                "copies of the same sample: use gaussian, zero or uniform"
            )

    def _find_fused(self) -> FusedFunctions | None:
        config = self.config
        if config.path not in ("auto", "fused") or config.compile:
            return None
        found = find(config, self.layout.model.device)
        if not isinstance(found, str):
            return found
        self._fall_back(found)
        return None

    def facts(self) -> dict[str, Any]:
        mean = float(self.targets.mean()) if isinstance(self.targets, Tensor) else self.targets
        return {"equilibrium": mean, "implementation": self.implementation}

    @property
    def implementation(self) -> str:
        if not self._fast:
            return "reference"
        return "fast" if self.fused is None else f"fused, {self.fused.name}"

    def begin(self, generation: Generation[HealState], earlier: HealState | None) -> HealState:
        state = HealState(len(self._part), self.layout.heads)
        state.visual_states = None if earlier is None else earlier.visual_states
        return state

    def before_pass(self, generation: Generation[HealState]) -> None:
        refresh = generation.phase == "prompt" or (
            generation.phase == "decode" and generation.step % self.config.interval == 0
        )
        generation.state.begin_pass(generation.step, refresh)
        if self.similarity is not None:
            self.similarity.begin_pass()

    def waits(self, generation: Generation[HealState]) -> bool:
        return generation.state.refresh  # new head types tell the host which layers to calibrate

    def after_pass(self, generation: Generation[HealState]) -> None:
        state = generation.state
        prompt = generation.phase == "prompt"
        if state.refresh:
            state.contributions = self.causal.finished(state.moved)
        if prompt:
            self._refresh_types(state, generation)
            state.prompt_contribution = state.stack(state.contributions, generation.rows)
            if self.similarity is not None:
                state.visual_states = self.similarity.read_prompt(generation, state.visual_states)
        if not prompt or not self.repeats_last_position:
            if self.config.calibrate:
                generation.tally.add(*state.both_factors(generation.rows, missing=1.0))
            if self.similarity is not None:
                similarity = self.similarity.compared(generation)
                state.records.append(state.record(generation.rows, generation.step == 0, prompt, similarity))
        if state.refresh and not prompt:
            self._refresh_types(state, generation)

    def why_unchanged(self, generation: Generation[HealState]) -> str:
        if not self.config.calibrate:
            return "calibrate=False: the heads were measured only"
        if not any(map(generation.state.active, range(len(self._part)))):
            return f"no head was typed {self.config.heads}"
        return "every calibrated head was at the equilibrium or not mixed"

    # ── one layer ─────────────────────────────────────────────────────────────────────────────────────

    def attention(
        self, generation: Generation[HealState], call: AttentionCall, plain: Callable[[], Tensor]
    ) -> Tensor:
        if not self._part[call.layer]:
            return plain()
        if generation.phase != "prompt":
            return self._attend(generation, call, plain)
        out = plain()
        self._observe(generation, call.layer, call.newest)
        return out

    def _observe(self, generation: Generation[HealState], layer: int, at: Attended) -> None:
        """Measure the heads at the last prompt position."""
        state = generation.state
        moments = state.moments[layer] = Moments.of(at.key, at.value, at.regions) if self._fast else None
        state.scores[layer] = self._scores(generation, layer, at, moments)
        self._record_attention(state, layer, at)
        if self.trace and not self.repeats_last_position:
            state.prompt_scores[layer] = self._scores(generation, layer, at, moments, address=0)
        if self.repeats_last_position and moments is not None:
            # the last position will be run again with calibrated layers
            moments.remove(at.key[:, :, -1], at.value[:, :, -1], generation.last_groups.to(at.key.device))

    def _attend(self, generation: Generation[HealState], call: AttentionCall, plain: Callable[[], Tensor]) -> Tensor:
        """Measure and calibrate the heads at a generated token, or at the repeated last prompt position."""
        state, layer, at = generation.state, call.layer, call.newest
        fused = self._covering(at)
        moments, behind = self._current_moments(generation, layer, at)
        active = state.active(layer)
        needed = active or state.refresh or self.trace
        if fused is not None and moments is not None and needed:
            out = self._attend_fused(fused, call, moments, behind, state)
            return plain() if out is None else out
        self._record_attention(state, layer, at)
        if behind and moments is not None:
            self._append(generation, at, moments, fused)
        if not needed:
            return plain()
        if self.config.compile and self.config.calibrate and active:
            assert moments is not None
            call.know_plain(call.plain_newest)
            return self._compiled(generation, layer, at, moments)
        scores = state.scores[layer] = self._scores(generation, layer, at, moments)
        if not self.config.calibrate or not active:
            return plain()
        assert state.found is not None
        found = joint_factors(
            scores,
            state.found.least_of[layer].to(scores.device),
            self._both_targets(layer, scores.device, scores.dtype),
            self.config.limit,
            self.config.drift == "language",
        )
        if self.config.heads == "permuted":
            found = found[:, self._sources(layer, found.device)]
        state.factors[layer] = found
        if not self._fast:
            # not computed from the parts that a trace splits off, so that rounding differs
            call.know_plain(call.plain_newest)
            return reference_output(at, found[..., 0].float(), found[..., 1].float()).unsqueeze(1)
        if self.stage.expected:
            call.know_plain(at.real.output.flatten(1, 3))
        return at.real.scaled(found.unflatten(1, (at.key.shape[1], -1)))

    def _record_attention(self, state: HealState, layer: int, at: Attended) -> None:
        """The share of attention on visual positions, from the normalisers that the split returns anyway."""
        if self.trace:
            state.visual_share[layer] = at.real.shares[..., VISUAL].flatten(1)

    def _covering(self, at: Attended) -> FusedFunctions | None:
        """The compiled functions, if they can be used for this layer."""
        if self.fused is None:
            return None
        reason = self.fused.uncovered(at)
        if reason is None:
            return self.fused
        self._fall_back(reason)
        return None

    def _fall_back(self, reason: str) -> None:
        """Remember that torch is used instead, and say so once if the fused path was asked for."""
        if self.fell_back is None:
            self.fell_back = reason
            if self.config.path != "fused":
                return
            warnings.warn(f"path fused is not used, fast is: {reason}", HealWarning, stacklevel=2)

    def _attend_fused(
        self, fused: FusedFunctions, call: AttentionCall, moments: Moments, behind: bool, state: HealState
    ) -> Tensor | None:
        """`_attend` by compiled functions. None if the output is the plain one."""
        at, layer = call.newest, call.layer
        assert state.found is not None
        targets = self._both_targets(layer, at.query.device, fused.dtype).view(-1, 2)
        least = state.found.least_of[layer].to(at.query.device)
        found = fused.run(at, moments, behind, self.stage.tables(at), least, targets)
        if state.refresh or self.trace:
            state.scores[layer] = found.scores
            state.visual_share[layer] = found.visual_share
        if not self.config.calibrate or not state.active(layer):
            return None
        state.factors[layer] = found.factors
        call.know_plain(found.plain, fused.exact)
        return found.out.unsqueeze(1)

    def _compiled(self, generation: Generation[HealState], layer: int, at: Attended, moments: Moments) -> Tensor:
        """`_attend` as one compiled function."""
        state = generation.state
        assert state.found is not None
        noise = self._noise(generation, layer, at.query.device).at(INFORMATION, 0)
        step = LayerStep(
            query=at.query,
            scale=at.scale,
            softcap=at.softcap,
            mean=moments.mean,
            squared=moments.squared,
            draw=GaussianDraw.of(at, noise),
            real=at.split(),
            calibrated=state.found.chosen[:, layer].to(at.query.device),
            target=self._target(layer, at.query.device),
            limit=self.config.limit,
            one_sided=self.config.drift == "language",
            measure=self.config.measure,
        )
        visual, language, total, beta, gamma, out = compiled_step(step)
        state.factors[layer] = torch.stack([beta, gamma], dim=-1)
        state.scores[layer] = torch.stack([visual, language, total], dim=-1)
        return out.unsqueeze(1)

    def _scores(
        self,
        generation: Generation[HealState],
        layer: int,
        at: Attended,
        moments: Moments | None,
        address: int | None = None,
    ) -> Tensor:
        """`address` overrides the noise address of the pass."""
        if self.stage.expected:
            return self.stage.of(at, moments, None)
        noise = self._noise(generation, layer, at.query.device, address)
        return self.stage.of(at, moments, noise.at(INFORMATION))

    def _target(self, layer: int, device: torch.device) -> float | Tensor:
        return self.targets[layer, None].to(device) if isinstance(self.targets, Tensor) else self.targets

    def _both_targets(self, layer: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(α, 1 − α), by head if heads have their own."""
        place = (layer if isinstance(self.targets, Tensor) else 0, device, dtype)
        if place not in self._pairs:
            own = torch.as_tensor(self.targets, dtype=torch.float64)
            own = own[layer] if own.dim() else own
            self._pairs[place] = torch.stack([own, 1 - own], dim=-1).to(device, dtype)
        return self._pairs[place]

    def _sources(self, layer: int, device: torch.device) -> Tensor:
        """For each head of a layer, the head whose factors it gets: one random cycle, so no head keeps its own."""
        if (layer, device) not in self._orders:
            noise = Noise(self.config.seed, torch.device("cpu")).at(ORDER, layer)
            order = noise.uniform((), self.layout.heads).argsort()
            sources = torch.empty_like(order)
            sources[order] = order.roll(1)
            self._orders[layer, device] = sources.to(device)
        return self._orders[layer, device]

    def _current_moments(
        self, generation: Generation[HealState], layer: int, at: Attended
    ) -> tuple[Moments | None, bool]:
        """The moments, and whether the newest position has to be added to them."""
        if not self._fast:
            return None, False
        moments = generation.state.moments[layer]
        if moments is not None and at.regions.length == generation.length:
            return moments, True
        # a crop, or positions left a sliding window
        moments = Moments.of(at.key, at.value, at.regions)
        if at.regions.length == generation.length:
            generation.state.moments[layer] = moments
        return moments, False

    def _append(
        self, generation: Generation[HealState], at: Attended, moments: Moments, fused: FusedFunctions | None
    ) -> None:
        """Add the newest position to the moments."""
        if fused is not None:
            fused.append(at, moments)
            return
        key, value, regions = at.key[:, :, -1], at.value[:, :, -1], at.regions
        if regions.spans is not None and regions.spans[-1][1:] == (regions.length, LANGUAGE):
            moments.append_to(LANGUAGE, key, value, regions.counts[0][LANGUAGE])
        else:
            moments.append(key, value, generation.last_groups.to(key.device))

    def _noise(
        self, generation: Generation[HealState], layer: int, device: torch.device, address: int | None = None
    ) -> Noise:
        state = generation.state
        noise = state.noises.setdefault(device, Noise(self.config.seed, device))
        if address is None:  # the prompt analysis and the first token use different draws
            address = -1 if generation.phase == "prompt" else generation.step
        return noise.at(address, layer)

    # ── contributions and head types ──────────────────────────────────────────────────────────────────

    def final_hidden(self, generation: Generation[HealState], hidden: Tensor) -> None:
        if self.similarity is not None:
            self.similarity.final_hidden(hidden)

    def residual(self, generation: Generation[HealState], layer: int, hidden: Tensor) -> None:
        if self.similarity is not None:
            self.similarity.residual(layer, hidden)
        if generation.state.refresh and self.config.replaced_by != "none" and self._part[layer]:
            generation.state.streams[layer] = hidden[:, -1]

    def project(
        self, generation: Generation[HealState], layer: int, heads: Tensor, projection: nn.Module
    ) -> Tensor | None:
        state = generation.state
        residual = state.streams[layer]
        # a method that only measures must not change any bit of the output
        if residual is None or not self.config.calibrate or not self._fast:
            return None
        noise = self._noise(generation, layer, heads.device).at(CAUSAL)
        found = self.causal.fused(layer, residual, heads, projection, noise)
        if found is None:
            return None
        out, state.moved[layer] = found
        return out

    def projected(
        self, generation: Generation[HealState], layer: int, heads: Tensor, output: Tensor, projection: nn.Module
    ) -> None:
        state = generation.state
        residual = state.streams[layer]
        if residual is None or state.moved[layer] is not None:
            return
        heads, output = heads[:, -1], output[:, -1]
        noise = self._noise(generation, layer, heads.device).at(CAUSAL)
        state.moved[layer] = self.causal.measured(layer, residual, heads, output, projection, noise)

    def _refresh_types(self, state: HealState, generation: Generation[HealState]) -> None:
        config = self.config
        scores = state.stack_scores(state.scores, generation.rows)
        considered = torch.tensor(self._part)[:, None].expand(-1, self.layout.heads)
        redundant = torch.zeros_like(scores.total, dtype=torch.bool)
        if config.replaced_by != "none":
            contributions = state.stack(state.contributions, generation.rows)
            redundant = causally_redundant(contributions, config.sigma_causal, config.yeo_johnson)
        found = classify(
            scores,
            redundant,
            config.mad,
            config.sigma_info,
            None if all(self._part) else considered.to(scores.total.device),
            config.yeo_johnson,
        )
        chosen = self._choose(found, considered.to(found.types.device), generation)
        active = chosen.any(dim=2).any(dim=0).tolist()
        least = torch.where(chosen, DEAD_ZONE, torch.inf)
        state.refreshed(HeadTypes(generation.step, found.types, chosen, least, active))

    def _choose(self, found: HeadMap, considered: Tensor, generation: Generation[HealState]) -> Tensor:
        """The heads to calibrate. All choices except synergy are controls."""
        if self.config.heads == "all":
            return considered.expand_as(found.types)
        if self.config.heads == "permuted":
            return found.mask(HeadType.SYNERGY)
        if self.config.heads != "random":
            return found.mask(HeadType[self.config.heads.upper()])
        noise = self._noise(generation, 0, found.types.device).at(CHOICE)
        order = noise.uniform((), considered.numel()).view(considered.shape).masked_fill(~considered, torch.inf)
        rank = order.flatten().argsort().argsort().view(considered.shape)
        return rank < found.mask(HeadType.SYNERGY).sum(dim=(1, 2), keepdim=True)
