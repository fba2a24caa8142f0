"""Decoding speed: plain model and the paths of HEAL, interleaved step by step in one run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

import torch

from heal.devices import usable_device
from heal.engine.layout import Layout
from heal.errors import ConfigError, HealError, HealWarning
from heal.methods.heal import HEAL
from heal.methods.heal_fused import find
from heal.speed_arms import Arm, calibrated, memory
from heal.speed_model import PRESETS, Shape, random_model, shape_of

REFERENCE_ROUNDS = 2
PROMPT_ROUNDS = 3
PLAIN, FAST, FUSED, REFERENCE = "plain", "fast", "fused", "reference"

Item = TypeVar("Item")
Round = Mapping[str, Sequence[float]]
"""Durations in seconds of the steps of each variant."""


@dataclass(frozen=True)
class ArmSpeed:
    """The times of one variant. Ratios are to the plain model of the same round."""

    name: str
    """plain, fast, fused or reference."""
    implementation: str
    """What ran: sdpa, or the path of HEAL with its compiler."""
    ms: float
    """Per decoding step, refresh included: median over rounds."""
    ratio: float
    """Median over rounds."""
    ratio_low: float
    ratio_high: float
    """Quartiles over rounds."""
    refresh_ms: float | None
    """Additional time of a step that refreshes head types. None: the plain model has none."""
    prefill_ms: float
    prefill_ratio: float
    """Without the decoding step that repeats the last position."""


@dataclass(frozen=True)
class Speed:
    """Milliseconds per decoding step. A round has `interval` steps; its time combines the median of the ordinary
    steps with the one refresh step, by their frequency. Figures are medians over rounds, ranges are quartiles."""

    preset: str
    layers: int
    batch: int
    dtype: str
    device: str
    threads: int
    rounds: int
    interval: int
    arms: tuple[ArmSpeed, ...]
    """The plain model first."""
    skipped: Mapping[str, str]
    """Variants that were left out, with the reason."""
    extra_bytes_per_layer: int
    workspace_bytes: int
    """Both of the fast path. The fused one keeps the same between steps."""
    kv_bytes_per_layer: int
    calibrated_heads: float
    """Mean share of heads that were calibrated; the comparison is meaningless if it is 0."""

    def arm(self, name: str) -> ArmSpeed:
        for own in self.arms:
            if own.name == name:
                return own
        raise ConfigError(f"{name} was not measured: choose one of {', '.join(own.name for own in self.arms)}")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "arms": [asdict(own) for own in self.arms], "skipped": dict(self.skipped)}

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per variant, each with the figures that they share."""
        shared = {name: value for name, value in self.to_dict().items() if name not in ("arms", "skipped")}
        return [{**asdict(own), **shared} for own in self.arms]


@dataclass(frozen=True)
class Setup:
    """What to measure."""

    preset: str = "llava-1.5-7b"
    layers: int = 2
    batch: int = 1
    dtype: torch.dtype = torch.float32
    threads: int = 1
    rounds: int = 5
    method: HEAL = field(default_factory=HEAL)
    reference: bool = True
    """Also measure the reference implementation."""
    device: str = "cpu"
    """Where the random model is built. A given model is measured where it is."""

    def __post_init__(self) -> None:
        if min(self.rounds, self.layers, self.batch, self.threads) < 1:
            raise ConfigError("rounds, layers, batch and threads must be 1 or more")


@torch.inference_mode()
def measure(setup: Setup, model: Any | None = None, progress: Callable[[str], None] = lambda _: None) -> Speed:
    """Measure a random model, or this one. Each round decodes `interval` steps per variant, with one refresh."""
    if setup.preset not in PRESETS and model is None:
        raise ConfigError(f"unknown preset {setup.preset!r}: choose one of {', '.join(PRESETS)}, or give a model")
    torch.set_num_threads(setup.threads)
    if model is None:
        place = usable_device(setup.device)
        progress("building the model")
        shape = PRESETS[setup.preset]
        model = random_model(shape, setup.layers, setup.dtype).to(place)
    else:
        shape, setup = shape_of(model), replace(setup, preset=model.config.model_type)
    progress("processing the prompt")
    methods, skipped = _methods(setup, model.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "path fused is not used", HealWarning)  # it is left out below
        arms = [Arm(model, method, shape, setup.batch, name) for name, method in methods.items()]
        _prefill(arms)
    skipped |= {arm.name: arm.fell_back for arm in arms if arm.name == FUSED and arm.fell_back is not None}
    arms = [arm for arm in arms if arm.name not in skipped]
    interleaved = [arm for arm in arms if arm.name != REFERENCE]
    for arm in interleaved:
        arm.steps(setup.method.interval)  # warm-up; the refresh is the last step of each round
    times: list[Round] = []
    for number in range(setup.rounds):
        progress(f"round {number + 1} of {setup.rounds}")
        own = _round(interleaved, setup.method.interval, number)
        if number < REFERENCE_ROUNDS:  # it is too slow for every round
            own |= {arm.name: arm.steps(setup.method.interval) for arm in arms if arm.name == REFERENCE}
        times.append(own)
    return _summary(setup, shape, arms, times, skipped)


def _methods(setup: Setup, device: torch.device) -> tuple[dict[str, HEAL | None], dict[str, str]]:
    """The variants by name, and why the fused path is left out."""
    method = setup.method
    found: dict[str, HEAL | None] = {PLAIN: None, FAST: replace(method, path="fast")}
    functions = find(method, device)
    if not isinstance(functions, str):
        found[FUSED] = replace(method, path="fused", compile=False)
    if setup.reference:
        found[REFERENCE] = replace(method, path="reference", compile=False)
    return found, {FUSED: functions} if isinstance(functions, str) else {}


def _prefill(arms: Sequence[Arm]) -> None:
    """Process the prompt: several times in turns, by the reference once."""
    for number in range(PROMPT_ROUNDS):
        for arm in in_turn([arm for arm in arms if arm.name != REFERENCE], number):
            arm.prefill()
    for arm in arms:
        if arm.name == REFERENCE:
            arm.prefill()


def _round(arms: Sequence[Arm], interval: int, number: int) -> dict[str, Sequence[float]]:
    """Durations of the steps of each variant, one step at a time: all of them see the same load of the machine."""
    found: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for step in range(interval):
        for arm in in_turn(arms, step + number):  # so that the order at the refresh changes too
            found[arm.name] += arm.steps(1)
    return dict(found)


def in_turn(arms: Sequence[Item], turn: int) -> list[Item]:
    """Another order in every turn, in both directions: each follows each other one equally often."""
    first = turn % len(arms)
    rotated = [*arms[first:], *arms[:first]]
    return rotated[::-1] if turn // len(arms) % 2 else rotated


def _summary(
    setup: Setup, shape: Shape, arms: Sequence[Arm], times: Sequence[Round], skipped: Mapping[str, str]
) -> Speed:
    plain, fast = arms[:2]
    for arm in arms:
        if arm.name == FUSED and arm.fell_back is not None:
            raise HealError(f"the fused path was not used in every step: {arm.fell_back}")
    layers = len(Layout.of(plain.model).layers)
    measured = tuple(_arm_speed(setup, arm, plain, times) for arm in arms)
    extra, workspace = memory(fast)
    return Speed(
        preset=setup.preset,
        layers=layers,
        batch=setup.batch,
        dtype=str(plain.model.dtype).removeprefix("torch."),
        device=str(plain.model.device),
        threads=setup.threads,
        rounds=len(times),
        interval=setup.method.interval,
        arms=measured,
        skipped=skipped,
        extra_bytes_per_layer=extra // layers,
        workspace_bytes=workspace,
        kv_bytes_per_layer=sum(
            t.numel() * t.element_size() for t in (fast.cache.layers[0].keys, fast.cache.layers[0].values)
        ),
        calibrated_heads=calibrated(fast, layers * shape.heads),
    )


def _arm_speed(setup: Setup, arm: Arm, plain: Arm, times: Sequence[Round]) -> ArmSpeed:
    own = [(r[arm.name], r[PLAIN]) for r in times if arm.name in r]
    ratios = sorted(step_s(mine) / step_s(base) for mine, base in own)
    repeated = 0.0 if arm is plain else median(step_s(r[PLAIN]) for r in times) / setup.batch
    return ArmSpeed(
        name=arm.name,
        implementation=arm.implementation,
        ms=1e3 * median(step_s(mine) for mine, _ in own),
        ratio=median(ratios),
        ratio_low=ratios[len(ratios) // 4],
        ratio_high=ratios[-1 - len(ratios) // 4],
        refresh_ms=None if arm is plain else 1e3 * median(mine[-1] - median(mine) for mine, _ in own),
        prefill_ms=1e3 * arm.prefill_s,
        prefill_ratio=(arm.prefill_s - repeated) / plain.prefill_s,
    )


def step_s(steps: Sequence[float]) -> float:
    """Mean time per step of a round. The refresh is the last step; outliers among the others are ignored."""
    ordinary = median(steps[:-1]) if len(steps) > 1 else steps[-1]
    return ((len(steps) - 1) * ordinary + steps[-1]) / len(steps)
