"""HEAL: keep the visual and the language information of synergy heads at equilibrium."""

from __future__ import annotations

from dataclasses import dataclass
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
Path = Literal["auto", "fast", "fused", "reference"]
Drift = Literal["both", "language"]
Heads = Literal["synergy", "visual", "language", "all", "random", "permuted"]
Preset = Literal["gaussian", "expected", "paper"]

MOST_DRAWS = 1_000
DRAWN = ("gaussian", "uniform")
"""Maskings that draw noise."""

MASKING_OF: dict[str, Masking] = {"gaussian": "gaussian", "expected": "expected", "paper": "gaussian"}
REPLACEMENT_OF: dict[str, Replacement] = {"gaussian": "gaussian", "expected": "expected", "paper": "gaussian"}
LIMIT_OF = {"gaussian": 2.0, "expected": 2.0, "paper": None}
"""What each preset stands for."""

PRESETS = {
    "llava": 0.5,
    "llava_next": 0.5,
    "internvl": 0.5,
    "qwen2_vl": 0.4,
    "qwen2_5_vl": 0.4,
    "qwen3_vl": 0.4,
    "qwen3_vl_moe": 0.4,
}
"""α of the paper for POPE and CHAIR by model family (its other benchmarks use 0.1 more). Other families: 0.5."""


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
    """Equilibrium: the target visual share of synergy heads, in (0, 1). None: the preset of the model family.
    auto: the model's mean at correct tokens. profile: each head's median there (see `heal calibrate`)."""

    delta: float = 0.0
    """With alpha=profile: shift of every head's target in logits. 0 restores the equilibrium, larger values favour
    the image."""

    profile: str | None = None
    """File written by `heal calibrate`, for auto and profile. None: equilibrium.json in the checkpoint folder."""

    interval: int = 10
    """Refresh head types every N steps, counted from the first token. Very large: only once, after the prompt."""

    preset: Preset = "expected"
    """expected: expectations over all noise draws instead of a draw, so that the seed does not matter, and factors
    bounded by 2. gaussian: the same with drawn noise. paper: as printed, one draw and unbounded factors."""

    masking: Masking | None = None
    """Replacement for the keys and values of a modality: expected (the mean over all gaussian draws, without a draw),
    gaussian, zero, uniform, or swap (those of another row). None: from the preset."""

    covariance: Covariance = "diagonal"
    """Covariance of expected and gaussian masking: diagonal, or full (one more pass over keys or values per step)."""

    replacement: Replacement | None = None
    """Replacement for a head's output to test whether it matters: expected (the mean over all gaussian draws),
    gaussian, zero, uniform, cauchy, swap, none. None: from the preset."""

    measure: Measure = "cosine"
    """Similarity of outputs: cosine, l2 or cosine+l2."""

    draws: int = 1
    """Number of noise draws to average scores over. More than 1 requires gaussian or uniform masking."""

    mad: float = MAD
    """λ: a mixed head within λ median absolute deviations of the median logit is synergy. inf: every mixed head."""

    sigma_causal: float = 3.0
    """A head this many standard deviations below its layer's mean is causally redundant. inf: never."""

    sigma_info: float = 3.0
    """A head this many standard deviations below the mean of all heads is information redundant. inf: never."""

    yeo_johnson: bool = False
    """Apply a Yeo–Johnson transform before the two σ rules."""

    factor_limit: float | Literal["preset"] | None = "preset"
    """Bounds both factors to [1/limit, limit]. None: unbounded as in the paper, which can break an answer."""

    drift: Drift = "both"
    """Drift to correct: both, as in the paper, or language, which does not change heads more visual than α."""

    layers: tuple[int, ...] | None = None
    """Decoder layers to use. None: all."""

    heads: Heads = "synergy"
    """Heads to calibrate: synergy, or as a control visual, language, all, random (as many as synergy, each with its
    own factors), or permuted (the factors of the synergy heads, each on another random head of its layer)."""

    sinks: Sinks = "language"
    """Group of the first token and special tokens: language, or neutral (attended, but never masked or scaled)."""

    seed: int = 0
    """Seed of the noise, which has its own generator. Expected masking and replacement do not depend on it."""

    path: Path = "auto"
    """fused: a decoding step of a layer is one compiled function (Triton on a GPU, Numba on a CPU). fast: torch
    operations, for every model and option. auto: fused where it can be used, else fast. reference: a slow
    implementation with the paper's tensors, for comparison."""

    compile: bool = False
    """Compile the small operations of a step into a few kernels, mainly for GPUs. Takes half a minute at the first
    call. Requires preset=gaussian with diagonal covariance, one draw and the fast path."""

    calibrate: bool = True
    """False: only measure, and leave the output of the model unchanged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, allowed in (
            ("preset", Preset),
            ("masking", (*MASKINGS, None)),
            ("covariance", COVARIANCES),
            ("replacement", (*REPLACEMENTS, None)),
            ("measure", MEASURES),
            ("drift", Drift),
            ("heads", Heads),
            ("sinks", Sinks),
            ("path", Path),
        ):
            checks.one_of(self, allowed, field)
        checks.whole(self, 1, "interval")
        checks.whole(self, 1, "draws", high=MOST_DRAWS)
        checks.whole(self, 0, "seed")
        checks.finite(self, "delta")
        checks.at_least(self, 0, "mad", "sigma_causal", "sigma_info", inf=True)
        if self.factor_limit != "preset":
            checks.at_least(self, 1, "factor_limit")
        checks.layer_list(self)
        if self.covariance == "full" and self.noise not in ("expected", "gaussian"):
            raise ConfigError(f"covariance full requires expected or gaussian masking, not {self.noise}")
        if self.draws > 1 and self.noise not in DRAWN:
            raise ConfigError(
                f"draws={self.draws} has no effect with {self.noise} masking, which draws no noise: omit it, or give "
                "preset=gaussian"
            )
        compilable = ("gaussian", "diagonal", 1)
        if self.compile and (
            (self.noise, self.covariance, self.draws) != compilable or self.path not in ("auto", "fast")
        ):
            raise ConfigError("compile needs preset gaussian, covariance diagonal, draws 1 and path auto or fast")
        if self.compile and self.heads == "permuted":
            raise ConfigError("compile cannot permute factors among heads: omit it")
        if isinstance(self.alpha, str) and self.alpha not in ("auto", "profile"):
            raise ConfigError(f"alpha cannot be {self.alpha!r}: give a number, auto or profile")
        if isinstance(self.alpha, (int, float)) and not 0 < self.alpha < 1:
            raise ConfigError(f"alpha must lie strictly between 0 and 1, not {self.alpha}")
        if self.delta and self.alpha != "profile":
            raise ConfigError("delta shifts the targets of a profile: it requires alpha='profile'")
        if self.profile is not None and not isinstance(self.alpha, str):
            raise ConfigError("profile requires alpha='auto' or alpha='profile'")

    @property
    def noise(self) -> Masking:
        """The masking, from the option or the preset."""
        return MASKING_OF[self.preset] if self.masking is None else self.masking

    @property
    def replaced_by(self) -> Replacement:
        """The replacement, from the option or the preset."""
        return REPLACEMENT_OF[self.preset] if self.replacement is None else self.replacement

    @property
    def limit(self) -> float | None:
        """The bound of the factors, from the option or the preset."""
        return LIMIT_OF[self.preset] if self.factor_limit == "preset" else self.factor_limit

    def targets(self, layout: Layout) -> float | Tensor:
        """α for this model: one number, or one per layer and head."""
        if not isinstance(self.alpha, str):
            return self.alpha if self.alpha is not None else preset(layout.family)
        found = Equilibrium.load(self.profile) if self.profile else Equilibrium.of_model(layout.model)
        if self.alpha == "auto":
            return found.mean
        shape = (len(layout.layers), layout.heads)
        if found.logits.shape != shape:
            raise ConfigError(
                f"the profile is for a model with {found.logits.shape} layers and heads, but this model has {shape}: "
                "create one for this model with `heal calibrate`"
            )
        return torch.from_numpy(found.targets(self.delta))

    def runtime(self, layout: Layout, trace: bool) -> Runtime[Any]:
        from heal.methods.heal_runtime import HealRuntime

        if self.layers is not None:
            checks.layers_exist(self, len(layout.layers))
        return HealRuntime(self, layout, trace)
