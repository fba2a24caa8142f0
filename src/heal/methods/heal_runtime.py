"""HEAL during a generation: measure and calibrate the heads of each layer at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heal.analysis.calibration import factors
from heal.analysis.contribution import causally_redundant
from heal.analysis.counterfactual import Attended, GaussianDraw, noise_partials
from heal.analysis.information import HeadScores, mean_scores, scores_from_partials
from heal.analysis.moments import Moments
from heal.analysis.noise import Noise
from heal.analysis.reference import reference_output, reference_scores
from heal.analysis.split import LANGUAGE, Partial, merge
from heal.analysis.step import LayerStep, compiled_step
from heal.analysis.taxonomy import HeadMap, HeadType, classify
from heal.engine.attention_call import AttentionCall
from heal.engine.generation import Generation
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError
from heal.methods.heal import HEAL
from heal.methods.heal_causal import CausalStage
from heal.methods.heal_state import HeadTypes, HealState

INFORMATION, CAUSAL, CHOICE = 0, 1, 2  # noise addresses


class HealRuntime(Runtime[HealState]):
    last_position_only = True
    neutral: ClassVar[Mapping[str, float]] = {"beta": 1.0, "gamma": 1.0}

    def __init__(self, config: HEAL, layout: Layout, trace: bool) -> None:
        self.config = config
        self.layout = layout
        self.targets = config.targets(layout)
        self.trace = trace
        self.group_count = 3 if config.sinks == "neutral" else 2
        self.repeats_last_position = config.calibrate
        self.changes_output = config.calibrate
        self.causal = CausalStage(config, layout)
        count = len(layout.layers)
        self._part = [config.layers is None or i in config.layers for i in range(count)]

    # ── passes ────────────────────────────────────────────────────────────────────────────────────────

    def check_rows(self, samples: int, copies: int) -> None:
        if copies > 1 and "swap" in (self.config.masking, self.config.replacement):
            raise ConfigError(
                "swap takes values from another sample, but with beams or several return sequences the rows are "
                "copies of the same sample: use gaussian, zero or uniform"
            )

    def facts(self) -> dict[str, Any]:
        mean = float(self.targets.mean()) if isinstance(self.targets, Tensor) else self.targets
        return {"equilibrium": mean}

    def begin(self, generation: Generation[HealState], earlier: HealState | None) -> HealState:
        return HealState(len(self._part), self.layout.heads)

    def before_pass(self, generation: Generation[HealState]) -> None:
        refresh = generation.phase == "prompt" or (
            generation.phase == "decode" and generation.step % self.config.interval == 0
        )
        generation.state.begin_pass(generation.step, refresh)

    def after_pass(self, generation: Generation[HealState]) -> None:
        state = generation.state
        prompt = generation.phase == "prompt"
        if prompt:
            self._refresh_types(state, generation)
            state.prompt_contribution = state.stack(state.contributions, generation.rows)
        if not prompt or not self.repeats_last_position:
            if self.config.calibrate:
                generation.tally.add(*(state.stack(f, generation.rows, 1.0) for f in (state.betas, state.gammas)))
            if self.trace:
                state.records.append(state.record(generation.rows, generation.step == 0, prompt))
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
            return self._attend(generation, call.layer, call.newest, plain)
        out = plain()
        self._observe(generation, call.layer, call.newest)
        return out

    def _observe(self, generation: Generation[HealState], layer: int, at: Attended) -> None:
        """Measure the heads at the last prompt position."""
        state = generation.state
        if self.config.path == "fast":
            state.moments[layer] = Moments.of(at.key, at.value, at.regions)
        real = at.split() if self.config.path == "fast" else None
        state.scores[layer] = self._scores(generation, layer, at, state.moments[layer], real)
        if self.trace and not self.repeats_last_position:
            state.prompt_scores[layer] = self._scores(generation, layer, at, state.moments[layer], real, address=0)
        if self.repeats_last_position and (moments := state.moments[layer]) is not None:
            # the last position will be run again with calibrated layers
            moments.remove(at.key[:, :, -1], at.value[:, :, -1], generation.last_groups.to(at.key.device))

    def _attend(
        self, generation: Generation[HealState], layer: int, at: Attended, plain: Callable[[], Tensor]
    ) -> Tensor:
        """Measure and calibrate the heads at a generated token, or at the repeated last prompt position."""
        state = generation.state
        moments = self._current_moments(generation, layer, at)
        if not (state.active(layer) or state.refresh or self.trace):
            return plain()
        real = at.split() if self.config.path == "fast" else None
        if self.config.compile and self.config.calibrate and state.active(layer):
            assert real is not None
            assert moments is not None
            return self._compiled(generation, layer, at, moments, real)
        scores = state.scores[layer] = self._scores(generation, layer, at, moments, real)
        if not self.config.calibrate or not state.active(layer):
            return plain()
        assert state.found is not None
        beta, gamma = factors(
            scores.visual,
            scores.language,
            state.found.chosen[:, layer].to(scores.visual.device),
            self._target(layer, scores.visual.device),
            self.config.factor_limit,
            self.config.drift == "language",
        )
        state.betas[layer], state.gammas[layer] = beta, gamma
        if real is None:
            out = reference_output(at, beta, gamma)
        else:
            out = merge(real, [beta, gamma, None][: len(real)])
        return out.unsqueeze(1)

    def _compiled(
        self, generation: Generation[HealState], layer: int, at: Attended, moments: Moments, real: list[Partial]
    ) -> Tensor:
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
            real=real,
            calibrated=state.found.chosen[:, layer].to(at.query.device),
            target=self._target(layer, at.query.device),
            limit=self.config.factor_limit,
            one_sided=self.config.drift == "language",
            measure=self.config.measure,
        )
        visual, language, total, state.betas[layer], state.gammas[layer], out = compiled_step(step)
        state.scores[layer] = HeadScores(visual, language, total)
        return out.unsqueeze(1)

    def _target(self, layer: int, device: torch.device) -> float | Tensor:
        return self.targets[layer, None].to(device) if isinstance(self.targets, Tensor) else self.targets

    def _current_moments(self, generation: Generation[HealState], layer: int, at: Attended) -> Moments | None:
        if self.config.path == "reference":
            return None
        moments = generation.state.moments[layer]
        if moments is None or at.regions.length < generation.length:  # a crop, or positions left a sliding window
            moments = Moments.of(at.key, at.value, at.regions)
            if at.regions.length == generation.length:
                generation.state.moments[layer] = moments
            return moments
        key, value, regions = at.key[:, :, -1], at.value[:, :, -1], at.regions
        if regions.spans is not None and regions.spans[-1][1:] == (regions.length, LANGUAGE):
            moments.append_to(LANGUAGE, key, value, regions.counts[0][LANGUAGE])
        else:
            moments.append(key, value, generation.last_groups.to(key.device))
        return moments

    def _scores(
        self,
        generation: Generation[HealState],
        layer: int,
        at: Attended,
        moments: Moments | None,
        real: list[Partial] | None,
        address: int | None = None,
    ) -> HeadScores:
        """`real` is None on the reference path. `address` overrides the noise address of the pass."""
        config, draws = self.config, []
        noise = self._noise(generation, layer, at.query.device, address).at(INFORMATION)
        for draw in range(1 if config.masking in ("zero", "swap") else config.draws):
            own = noise.at(draw)
            if real is None:
                draws.append(reference_scores(at, config.masking, own, config.covariance, config.measure))
            else:
                assert moments is not None
                fake = noise_partials(at, moments, config.masking, own, config.covariance)
                draws.append(scores_from_partials(real, fake, config.measure))
        return mean_scores(draws)

    def _noise(
        self, generation: Generation[HealState], layer: int, device: torch.device, address: int | None = None
    ) -> Noise:
        state = generation.state
        noise = state.noises.setdefault(device, Noise(self.config.seed, device))
        if address is None:  # the prompt analysis and the first token use different draws
            address = -1 if generation.phase == "prompt" else generation.step
        return noise.at(address, layer)

    # ── contributions and head types ──────────────────────────────────────────────────────────────────

    def residual(self, generation: Generation[HealState], layer: int, hidden: Tensor) -> None:
        if generation.state.refresh and self.config.replacement != "none" and self._part[layer]:
            generation.state.streams[layer] = hidden[:, -1]

    def project(
        self, generation: Generation[HealState], layer: int, heads: Tensor, projection: nn.Module
    ) -> Tensor | None:
        state = generation.state
        residual = state.streams[layer]
        # a method that only measures must not change any bit of the output
        if residual is None or not self.config.calibrate or self.config.path != "fast":
            return None
        noise = self._noise(generation, layer, heads.device).at(CAUSAL)
        found = self.causal.fused(layer, residual, heads, projection, noise)
        if found is None:
            return None
        out, state.contributions[layer] = found
        return out

    def projected(
        self, generation: Generation[HealState], layer: int, heads: Tensor, output: Tensor, projection: nn.Module
    ) -> None:
        state = generation.state
        residual = state.streams[layer]
        if residual is None or state.contributions[layer] is not None:
            return
        heads, output = heads[:, -1], output[:, -1]
        noise = self._noise(generation, layer, heads.device).at(CAUSAL)
        state.contributions[layer] = self.causal.measured(layer, residual, heads, output, projection, noise)

    def _refresh_types(self, state: HealState, generation: Generation[HealState]) -> None:
        config = self.config
        scores = state.stack_scores(state.scores, generation.rows)
        considered = torch.tensor(self._part)[:, None].expand(-1, self.layout.heads)
        redundant = torch.zeros_like(scores.total, dtype=torch.bool)
        if config.replacement != "none":
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
        state.refreshed(HeadTypes(generation.step, found.types, chosen, chosen.any(dim=2).any(dim=0).tolist()))

    def _choose(self, found: HeadMap, considered: Tensor, generation: Generation[HealState]) -> Tensor:
        """The heads to calibrate. All choices except synergy are controls."""
        if self.config.heads == "all":
            return considered.expand_as(found.types)
        if self.config.heads != "random":
            return found.mask(HeadType[self.config.heads.upper()])
        noise = self._noise(generation, 0, found.types.device).at(CHOICE)
        order = noise.uniform((), considered.numel()).view(considered.shape).masked_fill(~considered, torch.inf)
        rank = order.flatten().argsort().argsort().view(considered.shape)
        return rank < found.mask(HeadType.SYNERGY).sum(dim=(1, 2), keepdim=True)
