"""Measure what the theorems of calibration speak about: the parts of heads, the stream after a layer, and the mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from heal.analysis import theory
from heal.analysis.calibration import factors
from heal.analysis.counterfactual import Attended
from heal.analysis.information import DEAD_ZONE
from heal.analysis.split import LANGUAGE, VISUAL
from heal.analysis.taxonomy import HeadType
from heal.bench.tasks.base import Sample
from heal.engine.layout import Layout
from heal.engine.residuals import residual_add
from heal.errors import UnsupportedError
from heal.methods.heal import HEAL
from heal.studies.layer_details import AtLayer, Observed, observed
from heal.studies.parts import Measured, Measurement
from heal.studies.setup import Setup
from heal.vlm import VLM

ALPHAS = (0.3, 0.5, 0.7)
RUN = (0.3, 0.7)
"""The equilibria at which the model runs calibrated, with the tokens of the plain answer."""
EVERY = 8
"""Every so many steps are measured."""
NORMS = ("pre_feedforward_layernorm", "post_attention_layernorm")
"""The norm between attention and feed-forward block, by the names that decoders give it."""


def theory_measurement(setup: Setup, distribution: str) -> Measurement:
    """The part `theory DISTRIBUTION`."""
    method, tokens = setup.heal, setup.caption_tokens

    def measure(vlm: VLM, samples: Sequence[Sample]) -> list[Measured]:
        return measured(vlm, samples, method, tokens)

    return Measurement(
        f"theory {distribution}",
        "theory",
        setup.captions(distribution),
        measure,
        {"method": method.options(), "max_new_tokens": tokens, "alphas": ALPHAS, "run": RUN, "every": EVERY},
        setup.batch_size,
        tokens,
        passes=2.0 + len(RUN),
    )


def measured(vlm: VLM, samples: Sequence[Sample], method: HEAL, tokens: int) -> list[Measured]:
    """One plain run, and one for each equilibrium of `RUN` with the same tokens."""
    check_layers(Layout.of(vlm.model))
    limits = tuple(dict.fromkeys((None, method.limit)))
    plain = observed(vlm, replace(method, calibrate=False), Parts(limits), samples, EVERY, max_new_tokens=tokens)
    directions = {step: _stacked(plain, step) for step in {step for own in plain for step in own.steps}}
    ids = [own.answer.token_ids for own in plain]
    after = {}
    for alpha in RUN:
        chosen = replace(method, calibrate=True, alpha=alpha, delta=0.0, profile=None, factor_limit=None)
        after[alpha] = observed(
            vlm, chosen, Alignment(directions), samples, EVERY, force=ids, max_new_tokens=max(map(len, ids))
        )
    return [
        _record(sample, own, {alpha: found[row] for alpha, found in after.items()})
        for row, (sample, own) in enumerate(zip(samples, plain, strict=True))
    ]


def _stacked(plain: Sequence[Observed], step: int) -> Float[Tensor, "rows layer hidden"]:
    """The visual directions of all rows at one step. Rows whose answer has ended get zeros."""
    known = next(own for own in plain if step in own.steps)
    blank = torch.zeros_like(known.values["direction"][0])
    return torch.stack(
        [own.values["direction"][own.steps.index(step)] if step in own.steps else blank for own in plain]
    )


def _record(sample: Sample, plain: Observed, after: Mapping[float, Observed]) -> Measured:
    arrays = {name: value.numpy() for name, value in plain.values.items() if name != "direction"}
    if plain.steps:
        runs = [after[alpha].values["alignment"].numpy() for alpha in RUN]
        arrays["running alignment"] = np.stack(runs, -1)
    return Measured(sample.id, {"unit": sample.unit, "steps": plain.steps}, arrays)


def check_layers(layout: Layout) -> None:
    """Raise an error if the layers are not of the kind that Theorem 3 is about."""
    hidden = layout.model.config.get_text_config().hidden_size
    for layer, attention in zip(layout.layers, layout.attention, strict=True):
        if residual_add(layer, attention, hidden).norm is not None:
            raise UnsupportedError(
                f"{type(layer).__name__} normalises the output of its attention before it is added: the theory of "
                "calibration does not cover this model"
            )
        if not isinstance(attention.o_proj, nn.Linear):
            raise UnsupportedError("the weights of o_proj are not accessible: load the model without quantisation")
        gain(layer)


def gain(layer: nn.Module) -> Float[Tensor, " hidden"]:
    """The gain of the norm that reads the stream after the attention: what it makes of a vector of ones."""
    norm = next((found for name in NORMS if (found := getattr(layer, name, None)) is not None), None)
    weight = getattr(norm, "weight", None)
    if norm is None or weight is None or getattr(norm, "bias", None) is not None:
        raise UnsupportedError(f"{type(layer).__name__} has no RMSNorm between attention and feed-forward block")
    with torch.no_grad():
        return norm(torch.ones_like(weight)).float()


# ── at one layer of the plain run ─────────────────────────────────────────────────────────────────────────


class Parts:
    """Everything that is measured at a layer of the plain model."""

    def __init__(self, limits: Sequence[float | None]) -> None:
        self.limits = limits

    def __call__(self, at: AtLayer) -> dict[str, Tensor]:
        visual, language = _parts(at)
        calibrated = (
            (at.types == int(HeadType.SYNERGY)) & (at.scores[..., 0] > DEAD_ZONE) & (at.scores[..., 1] > DEAD_ZONE)
        )
        share = torch.where(calibrated, at.scores[..., 0] / at.scores[..., :2].sum(-1), 0.5)
        found = {"heads": calibrated.sum(1)}
        found |= stream_figures(at, visual, language, share, calibrated)
        found |= head_figures(visual, language, share, calibrated)
        for limit in self.limits:
            own = mix_figures(at, visual, language, calibrated, limit)
            found |= {f"{name}, {'unbounded' if limit is None else 'bounded'}": value for name, value in own.items()}
        return found


def _parts(at: AtLayer) -> tuple[Float[Tensor, "rows heads dim"], Float[Tensor, "rows heads dim"]]:
    """h_v and h_l: what visual and language positions add to the output of each head."""
    shares = at.at.real.shares.flatten(1, 2)
    visual, language = at.at.split()[:2]
    return shares[..., 0, None] * visual.value, shares[..., 1, None] * language.value


def stream_figures(
    at: AtLayer,
    visual: Float[Tensor, "rows heads dim"],
    language: Float[Tensor, "rows heads dim"],
    share: Float[Tensor, "rows heads"],
    calibrated: Bool[Tensor, "rows heads"],
) -> dict[str, Tensor]:
    """Theorem 3: the margin M, and the alignment of the normalised stream with the visual direction, for each α."""
    layer, weight = at.layout.layers[at.layer], at.projection.weight
    assert isinstance(weight, Tensor)
    multiplier = residual_add(layer, at.layout.attention[at.layer], at.residual.shape[-1]).multiplier
    own_gain = gain(layer).to(at.residual.device)
    a_v, a_l = (multiplier * a for a in theory.mix_directions(visual, language, share, calibrated, weight.detach()))
    mixed = torch.where(calibrated[..., None], visual + language, 0.0).flatten(1)
    base = at.residual + multiplier * (at.output - mixed @ weight.detach().float().T)
    grid = [theory.margin(base, a_v, a_l, alpha, own_gain) for alpha in ALPHAS]
    direction = own_gain * a_v
    stream = own_gain * (at.residual + multiplier * at.output)
    return {
        "margin": torch.stack([m.value for m in grid], -1),
        "slope": torch.stack([m.slope for m in grid], -1),
        "alignment": torch.stack([m.alignment for m in grid], -1),
        "plain alignment": torch.cosine_similarity(stream, direction, -1),
        "direction": direction,
    }


def head_figures(
    visual: Float[Tensor, "rows heads dim"],
    language: Float[Tensor, "rows heads dim"],
    share: Float[Tensor, "rows heads"],
    calibrated: Bool[Tensor, "rows heads"],
) -> dict[str, Tensor]:
    """Theorem 2: the cosine of a calibrated head with its visual part, by vectors and by the formula; and Theorem 1
    for the norm as the measure of information."""
    direct, formula, mixes = [], [], []
    for alpha in ALPHAS:
        beta, gamma = alpha / share, (1 - alpha) / (1 - share)
        out = beta[..., None] * visual + gamma[..., None] * language
        direct.append(torch.cosine_similarity(out.double(), visual.double(), -1).float())
        formula.append(theory.alignment(visual, language, beta, gamma))
        mixes.append((theory.mix(*theory.rescaled(visual, language, alpha)) - alpha).abs())
    cosines = torch.stack(direct, -1)
    rising = (cosines.diff(dim=-1) > 0).all(-1) & calibrated
    return {
        "cosine": _over(cosines, calibrated),
        "rising": rising.sum(1),
        "error of theorem 2": _most((cosines - torch.stack(formula, -1)).abs(), calibrated),
        "error of theorem 1": _most(torch.stack(mixes, -1), calibrated),
    }


def _over(values: Float[Tensor, "rows heads alpha"], chosen: Bool[Tensor, "rows heads"]) -> Tensor:
    """The sum over the chosen heads."""
    return torch.where(chosen[..., None], values, 0.0).sum(1)


def _most(values: Float[Tensor, "rows heads alpha"], chosen: Bool[Tensor, "rows heads"]) -> Tensor:
    return torch.where(chosen[..., None], values, 0.0).amax((1, 2))


def mix_figures(
    at: AtLayer,
    visual: Float[Tensor, "rows heads dim"],
    language: Float[Tensor, "rows heads dim"],
    calibrated: Bool[Tensor, "rows heads"],
    limit: float | None,
) -> dict[str, Tensor]:
    """Theorem 1 (additivity): the mix that is measured again after the values were scaled, for each α."""
    before = at.scores[..., 0] / at.scores[..., :2].sum(-1)
    found: dict[str, list[Tensor]] = {name: [] for name in ("known", "reached", "error", "error before", "norm mix")}
    for alpha in ALPHAS:
        beta, gamma = factors(at.scores[..., 0], at.scores[..., 1], calibrated, alpha, limit)
        again = at.rescore(scaled(at, beta, gamma))[..., :2]
        known = calibrated & (again > DEAD_ZONE).all(-1)
        reached = again[..., 0] / again.sum(-1)
        norms = theory.mix(beta[..., None] * visual, gamma[..., None] * language)
        for name, value in (
            ("known", torch.ones_like(reached)),
            ("reached", reached),
            ("error", (reached - alpha).abs()),
            ("error before", (before - alpha).abs()),
            ("norm mix", norms),
        ):
            found[name].append(torch.where(known, value, 0.0).sum(1))
    return {name: torch.stack(values, -1) for name, values in found.items()}


def scaled(at: AtLayer, beta: Float[Tensor, "rows heads"], gamma: Float[Tensor, "rows heads"]) -> Attended:
    """The same query with the values of visual and language positions scaled, for every query head on its own."""
    own, heads = at.at, at.at.query.shape[1]
    key, value = (t.repeat_interleave(heads // t.shape[1], dim=1).float() for t in (own.key, own.value))
    of_visual, of_language = (own.regions.masks[:, group, None, :, None] for group in (VISUAL, LANGUAGE))
    value = torch.where(of_visual, value * beta[..., None, None], value)
    value = torch.where(of_language, value * gamma[..., None, None], value)
    return replace(own, query=own.query.float(), key=key, value=value)


# ── at one layer of a calibrated run ──────────────────────────────────────────────────────────────────────


class Alignment:
    """The alignment of the normalised stream with the visual direction of the plain run."""

    def __init__(self, directions: Mapping[int, Float[Tensor, "rows layer hidden"]]) -> None:
        self.directions = directions

    def __call__(self, at: AtLayer) -> dict[str, Tensor]:
        layer = at.layout.layers[at.layer]
        multiplier = residual_add(layer, at.layout.attention[at.layer], at.residual.shape[-1]).multiplier
        stream = gain(layer).to(at.residual.device) * (at.residual + multiplier * at.output)
        if at.step not in self.directions:  # all answers have ended
            return {"alignment": torch.full(stream.shape[:1], torch.nan)}
        direction = self.directions[at.step][:, at.layer].to(stream.device)
        found = torch.cosine_similarity(stream, direction, -1)
        return {"alignment": torch.where(direction.any(-1), found, torch.nan)}
