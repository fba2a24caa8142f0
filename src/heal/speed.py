"""Decoding speed: plain model, HEAL and its reference implementation, interleaved in one run."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heal.engine.attachment import Attachment
from heal.engine.layout import Layout
from heal.engine.transformers_api import BaseModelOutputWithPooling, DynamicCache
from heal.errors import ConfigError
from heal.methods.heal import HEAL
from heal.speed_model import PRESETS, Shape, random_model, shape_of

REFERENCE_ROUNDS = 2
PROMPT_ROUNDS = 3


@dataclass(frozen=True)
class Speed:
    """Milliseconds per decoding step. A round has `interval` steps; its time combines the median of the ordinary
    steps with the one refresh step, by their frequency. Figures are medians over rounds, ranges are quartiles."""

    preset: str
    layers: int
    batch: int
    dtype: str
    threads: int
    rounds: int
    interval: int
    plain_ms: float
    heal_ms: float
    reference_ms: float | None
    ratio: float
    ratio_low: float
    ratio_high: float
    reference_ratio: float | None
    refresh_ms: float
    prefill_plain_ms: float
    prefill_heal_ms: float
    prefill_ratio: float
    """Ratio of prefill times, without the decoding step that repeats the last position."""
    extra_bytes_per_layer: int
    workspace_bytes: int
    kv_bytes_per_layer: int
    calibrated_heads: float
    """Mean share of heads that were calibrated; the comparison is meaningless if it is 0."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Arm:
    """One variant of decoding, with its own KV cache."""

    def __init__(self, model: Any, method: HEAL | None, shape: Shape, batch: int) -> None:
        self.model = model
        self.batch = batch
        self.attachment: Attachment | None = None
        if method is not None:
            layout = Layout.of(model)
            self.attachment = Attachment(layout, method.runtime(layout, trace=False))
        self.token = torch.full((batch, 1), 7, device=model.device)
        self.shape = shape
        self.prefills: list[float] = []

    @contextmanager
    def attached(self) -> Iterator[None]:
        with self.attachment if self.attachment is not None else nullcontext():
            yield

    @property
    def prefill_s(self) -> float:
        return median(self.prefills)

    def prefill(self) -> None:
        """Process the prompt with a new KV cache."""
        config, shape = self.model.config, self.shape
        ids = torch.full((1, shape.positions), 7, device=self.model.device)
        before = min(35, shape.positions - shape.visual)
        ids[:, before : before + shape.visual] = config.image_token_id
        generator = torch.Generator().manual_seed(1)
        features = torch.randn(shape.visual, shape.hidden, generator=generator).to(
            self.model.device, self.model.dtype
        )
        ids[:, :before] = torch.randint(8, 128, (1, before), generator=generator)
        self.cache = DynamicCache(config=config.get_text_config())
        encoded = BaseModelOutputWithPooling(pooler_output=[features * 0.02])
        with self.attached():
            start = time.perf_counter()
            self.model(
                input_ids=ids,
                past_key_values=self.cache,
                mm_encoder_outputs={"image": encoded},
                use_cache=True,
                logits_to_keep=1,
            )
            _synchronise(self.model.device)
            self.prefills.append(time.perf_counter() - start)
            if self.batch > 1:  # all rows have the same prompt
                self.cache.batch_repeat_interleave(self.batch)

    def steps(self, count: int) -> list[float]:
        """Durations in seconds of the next `count` steps."""
        times = []
        with self.attached():
            for _ in range(count):
                start = time.perf_counter()
                self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True)
                _synchronise(self.model.device)
                times.append(time.perf_counter() - start)
        return times


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
        progress("building the model")
        shape = PRESETS[setup.preset]
        model = random_model(shape, setup.layers, setup.dtype)
    else:
        shape, setup = shape_of(model), replace(setup, preset=model.config.model_type)
    progress("processing the prompt")
    methods: list[HEAL | None] = [None, replace(setup.method, path="fast")]
    if setup.reference:
        methods.append(replace(setup.method, path="reference"))
    arms = [_Arm(model, method, shape, setup.batch) for method in methods]
    _prefill(arms)
    for arm in arms[:2]:
        arm.steps(setup.method.interval)  # warm-up; the refresh is the last step of each round
    times: list[list[list[float]]] = []
    for number in range(setup.rounds):
        progress(f"round {number + 1} of {setup.rounds}")
        times.append(_round(arms, setup.method.interval, with_reference=number < REFERENCE_ROUNDS))
    return _summary(setup, shape, model, arms, times)


def _prefill(arms: list[_Arm]) -> None:
    """Process the prompt: plain and HEAL several times in turns, the reference once."""
    for number in range(PROMPT_ROUNDS):
        for arm in arms[:2] if number % 2 else arms[1::-1]:
            arm.prefill()
    for arm in arms[2:]:
        arm.prefill()


def _round(arms: list[_Arm], interval: int, with_reference: bool) -> list[list[float]]:
    """Durations of the steps of each variant. The reference is too slow for every round."""
    # alternate step by step, so that both variants see the same load of the machine
    pair: list[list[float]] = [[], []]
    for step in range(interval):
        for i in (0, 1) if step % 2 else (1, 0):
            pair[i] += arms[i].steps(1)
    return pair + [arm.steps(interval) for arm in arms[2:] if with_reference]


def _summary(setup: Setup, shape: Shape, model: Any, arms: list[_Arm], times: list[list[list[float]]]) -> Speed:
    interval = setup.method.interval

    def step_s(steps: list[float]) -> float:
        """Mean time per step of a round. The refresh is the last step; outliers among the others are ignored."""
        ordinary = median(steps[:-1]) if interval > 1 else steps[-1]
        return ((interval - 1) * ordinary + steps[-1]) / interval

    def over_plain(arm: int) -> list[float]:
        return sorted(step_s(r[arm]) / step_s(r[0]) for r in times if len(r) > arm)

    fast, plain_s = arms[1], median(step_s(r[0]) for r in times)
    refresh = median(r[1][-1] - median(r[1]) for r in times)
    layers = len(Layout.of(model).layers)
    ratios, reference = over_plain(1), over_plain(2)
    extra, workspace = _memory(fast)
    return Speed(
        preset=setup.preset,
        layers=layers,
        batch=setup.batch,
        dtype=str(model.dtype).removeprefix("torch."),
        threads=setup.threads,
        rounds=len(times),
        interval=interval,
        plain_ms=1e3 * plain_s,
        heal_ms=1e3 * median(step_s(r[1]) for r in times),
        reference_ms=1e3 * median(step_s(r[2]) for r in times if len(r) > 2) if reference else None,
        ratio=median(ratios),
        ratio_low=ratios[len(ratios) // 4],
        ratio_high=ratios[-1 - len(ratios) // 4],
        reference_ratio=median(reference) if reference else None,
        refresh_ms=1e3 * refresh,
        prefill_plain_ms=1e3 * arms[0].prefill_s,
        prefill_heal_ms=1e3 * fast.prefill_s,
        prefill_ratio=(fast.prefill_s - plain_s / setup.batch) / arms[0].prefill_s,
        extra_bytes_per_layer=extra // layers,
        workspace_bytes=workspace,
        kv_bytes_per_layer=sum(
            t.numel() * t.element_size() for t in (fast.cache.layers[0].keys, fast.cache.layers[0].values)
        ),
        calibrated_heads=_calibrated(fast, layers * shape.heads),
    )


def _calibrated(arm: _Arm, heads: int) -> float:
    assert arm.attachment is not None
    steps = arm.attachment.tallies.latest[-1].steps
    return float(torch.stack([s[0].mean() for s in steps]).mean()) / heads


def _memory(arm: _Arm) -> tuple[int, int]:
    """Bytes of the method's state between steps, and its peak memory within a step."""
    assert arm.attachment is not None
    assert arm.attachment.latest is not None
    state = arm.attachment.latest.state
    kept = sum(m.nbytes for m in state.moments if m is not None)
    kept += sum(t.numel() * t.element_size() for t in (state.found.types, state.found.chosen))
    with arm.attached(), _Peak(arm.attachment) as peak:
        arm.model(input_ids=arm.token, past_key_values=arm.cache, use_cache=True)
    return kept, peak.most


class _Peak(TorchDispatchMode):
    """Tracks the peak size of the tensors created inside the method's attention."""

    def __init__(self, attachment: Attachment) -> None:
        super().__init__()
        self.live = self.most = 0
        self._inside = False
        runtime = attachment.runtime
        original = runtime.attention

        def attend(*args: Any, **kwargs: Any) -> Tensor:
            self._inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False

        self._restore = lambda: vars(runtime).pop("attention", None)
        runtime.attention = attend  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._inside and isinstance(out, Tensor) and not _shares(out, args):
            size = out.untyped_storage().nbytes()
            self.live += size
            self.most = max(self.most, self.live)
            weakref.finalize(out, self._free, size)
        return out

    def _free(self, size: int) -> None:
        self.live -= size

    def __exit__(self, *exc: Any) -> None:
        self._restore()
        super().__exit__(*exc)


def _shares(out: Tensor, args: Any) -> bool:
    """Whether `out` shares memory with an argument."""
    here = out.untyped_storage().data_ptr()
    return any(isinstance(a, Tensor) and a.untyped_storage().data_ptr() == here for a in args)
