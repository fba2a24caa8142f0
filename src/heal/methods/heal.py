"""HEAL: keep the visual and the language information of synergy heads at equilibrium."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from heal.analysis.contribution import REPLACEMENTS, Replacement
from heal.analysis.counterfactual import COVARIANCES, MASKINGS, Covariance, Masking
from heal.analysis.information import MEASURES, Measure
from heal.analysis.taxonomy import MAD
from heal.engine.layout import Layout
from heal.engine.runtime import Runtime
from heal.errors import ConfigError
from heal.methods import checks
from heal.methods.base import Method, register
from heal.methods.equilibrium import Equilibrium

Sinks = Literal["language", "neutral"]
Path = Literal["fast", "reference"]
Drift = Literal["both", "language"]
Heads = Literal["synergy", "visual", "language", "all", "random"]

MOST_DRAWS = 1_000

PRESETS = {
    "llava": 0.5,
    "llava_next": 0.5,
    "internvl": 0.5,
    "qwen2_vl": 0.4,
    "qwen2_5_vl": 0.4,
    "qwen3_vl": 0.4,
    "qwen3_vl_moe": 0.4,
}
"""The paper's α for POPE and CHAIR by family (0.1 more on its other benchmarks); 0.5 for a family not named here."""


def preset(family: str) -> float:
    return PRESETS.get(family, 0.5)


@register
@dataclass(frozen=True)
class HEAL(Method):
    """Causal noise intervention, counterfactual head types, and calibration of the values of synergy heads."""

    name: ClassVar[str] = "heal"
    summary: ClassVar[str] = "calibrates the visual/language mix of synergy heads"
    paper: ClassVar[str] = "MLLMs Hallucinate when Information Distribution Drifts in Synergy Heads (2026)"

    alpha: float | Literal["auto", "profile"] | None = None
    """Equilibrium: the visual share that synergy heads are brought back to, in (0, 1). None: the family's preset.
    auto: the model's own mean on correct tokens. profile: each head's own median there (see `heal calibrate`)."""

    delta: float = 0.0
    """With alpha=profile: shift of every head's target in logits. 0 restores health, more leans on the image."""

    profile: str | None = None
    """File of `heal calibrate` for auto and profile. None: equilibrium.json in the folder of the checkpoint."""

    interval: int = 10
    """Head types are found anew every so many steps; the first token counts as step 0. Very large: found once."""

    masking: Masking = "gaussian"
    """What the keys and values of a modality are replaced by: gaussian, zero, uniform, or swap (another row's)."""

    covariance: Covariance = "diagonal"
    """Covariance of gaussian masking: diagonal, or full (one more pass over the values a step)."""

    replacement: Replacement = "gaussian"
    """What a head's output is replaced by to see whether it matters: gaussian, zero, uniform, cauchy, swap, none."""

    measure: Measure = "cosine"
    """Similarity of outputs: cosine, l2 or cosine+l2."""

    draws: int = 1
    """Noise draws that scores are averaged over."""

    mad: float = MAD
    """λ: a mixed head within λ median absolute deviations of the median logit is synergy. inf: every mixed head."""

    sigma_causal: float = 3.0
    """A head is causally redundant this many standard deviations below its layer's mean. inf: never."""

    sigma_info: float = 3.0
    """A head is information redundant this many standard deviations below the mean of all. inf: never."""

    yeo_johnson: bool = False
    """Make values nearly normal before the two σ rules."""

    factor_limit: float | None = 2.0
    """Bounds both factors to [1/limit, limit]. None: unbounded, as in the paper, which can wreck an answer."""

    drift: Drift = "both"
    """Which drift is brought back: both, as in the paper, or language: heads more visual than α are left alone."""

    layers: tuple[int, ...] | None = None
    """Decoder layers that take part. None: all."""

    heads: Heads = "synergy"
    """Which heads are calibrated: synergy, or as a control visual, language, all, or as many random ones."""

    sinks: Sinks = "language"
    """Whether the first token and special tokens are language, or neutral: attended, never masked nor scaled."""

    seed: int = 0
    """Seed of the noise, which has a generator of its own."""

    path: Path = "fast"
    """fast, or reference: the paper's tensors as they are, slow, for comparison."""

    compile: bool = False
    """Compile the small operations of a step into few kernels: for GPUs, where each is a launch. Takes half a minute
    at first, and needs gaussian masking with diagonal covariance, one draw and the fast path."""

    calibrate: bool = True
    """False: only measure; the answers are the plain model's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, allowed in (
            ("masking", MASKINGS),
            ("covariance", COVARIANCES),
            ("replacement", REPLACEMENTS),
            ("measure", MEASURES),
            ("drift", Drift),
            ("heads", Heads),
            ("sinks", Sinks),
            ("path", Path),
        ):
            checks.one_of(self, allowed, field)
        checks.whole(self, 1, "interval", "draws")
        checks.whole(self, 0, "seed")
        checks.layer_list(self)
        if self.covariance == "full" and self.masking != "gaussian":
            raise ConfigError(f"covariance full belongs to gaussian masking, not to {self.masking}")
        if self.compile and (self.masking, self.covariance, self.draws, self.path) != (
            "gaussian",
            "diagonal",
            1,
            "fast",
        ):
            raise ConfigError("compile needs masking gaussian, covariance diagonal, draws 1 and path fast")
        if isinstance(self.alpha, str) and self.alpha not in ("auto", "profile"):
            raise ConfigError(f"alpha cannot be {self.alpha!r}: give a number, auto or profile")
        if isinstance(self.alpha, (int, float)) and not 0 < self.alpha < 1:
            raise ConfigError(f"alpha must lie strictly between 0 and 1, not {self.alpha}")
        if not isfinite(self.delta):
            raise ConfigError(f"delta must be a finite number, not {self.delta}")
        if self.delta and self.alpha != "profile":
            raise ConfigError("delta shifts the targets of a profile: give alpha='profile' with it")
        if self.profile is not None and not isinstance(self.alpha, str):
            raise ConfigError("profile belongs to alpha='auto' or 'profile'")
        if self.draws > MOST_DRAWS:
            raise ConfigError(f"draws must be at most {MOST_DRAWS}, not {self.draws}")
        for field in ("mad", "sigma_causal", "sigma_info"):
            if not (value := getattr(self, field)) >= 0:
                raise ConfigError(f"{field} must be zero or more (inf is allowed), not {value}")
        if self.factor_limit is not None and not (self.factor_limit >= 1 and isfinite(self.factor_limit)):
            raise ConfigError(f"factor_limit must be 1 or more, or None for no limit, not {self.factor_limit}")

    def targets(self, layout: Layout) -> float | Tensor:
        """α for this model: one number, or one for every layer and head."""
        if not isinstance(self.alpha, str):
            return self.alpha if self.alpha is not None else preset(layout.family)
        found = Equilibrium.load(self.profile) if self.profile else Equilibrium.of_model(layout.model)
        if self.alpha == "auto":
            return found.mean
        shape = (len(layout.layers), layout.heads)
        if found.logits.shape != shape:
            raise ConfigError(
                f"the profile is of a model with {found.logits.shape} layers and heads, this one has {shape}: "
                "make one for this model with `heal calibrate`"
            )
        return torch.from_numpy(found.targets(self.delta))

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        from heal.methods.heal_runtime import HealRuntime

        if self.layers is not None:
            checks.within(self, len(layout.layers))
        return HealRuntime(self, layout, trace)
