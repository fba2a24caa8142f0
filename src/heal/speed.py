"""How much slower a calibrated model decodes: plain, HEAL fast and HEAL reference, interleaved in one run."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
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

REFERENCE_ROUNDS = 2
PROMPT_ROUNDS = 3


@dataclass(frozen=True)
class Shape:
    """The dimensions that decide the time of a decoding step."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    positions: int
    visual: int


PRESETS = {
    "llava-1.5-7b": Shape(4096, 11008, 32, 32, 640, 576),
    "qwen2.5-vl-7b": Shape(3584, 18944, 28, 4, 1500, 1200),
}


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a decoding step. Within a round of `interval` steps a time is the median of the ordinary steps
    and the one refresh, weighted as they come; figures are medians over rounds, a spread is their quartiles."""

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
    """Of the prompt without the one decoding step that repeats its last position."""
    extra_bytes_per_layer: int
    workspace_bytes: int
    kv_bytes_per_layer: int
    calibrated_heads: float
    """Share of all heads that were calibrated, mean over steps: 0 would make the comparison worthless."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def random_model(shape: Shape, layers: int, dtype: torch.dtype, seed: int = 0) -> Any:
    """A LLaVA with these decoder dimensions, random weights, a token vision tower and a tiny vocabulary.

    The small vocabulary is on purpose: with few layers a real output layer would hide the cost of the method.
    """
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        image_size=28,
        patch_size=14,
    )
    text = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        vocab_size=128,
        max_position_embeddings=8192,
    )
    with _default_dtype(dtype), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_id=3))
    model.generation_config.eos_token_id = None
    return model.eval()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Arm:
    """One way of decoding, with a cache of its own that goes on from round to round."""

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
        """The prompt, read into a new cache."""
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
            if self.batch > 1:  # rows are alike, so the prompt is read once
                self.cache.batch_repeat_interleave(self.batch)

    def steps(self, count: int) -> list[float]:
        """Seconds of each of the next `count` steps."""
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


@torch.inference_mode()
def measure(
    preset: str = "llava-1.5-7b",
    layers: int = 2,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    threads: int = 1,
    rounds: int = 5,
    method: HEAL | None = None,
    reference: bool = True,
    model: Any | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Speed:
    """Every round decodes `interval` steps in each arm, plain and HEAL in turns, so that each has one refresh."""
    if preset not in PRESETS and model is None:
        raise ConfigError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}, or give a model")
    if rounds < 1 or layers < 1 or batch < 1 or threads < 1:
        raise ConfigError("rounds, layers, batch and threads must be 1 or more")
    method = method or HEAL()
    torch.set_num_threads(threads)
    given = model is not None
    shape = _shape_of(model) if given else PRESETS[preset]
    if model is None:
        progress("building the model")
        model = random_model(shape, layers, dtype)
    progress("reading the prompt")
    plain, fast = _Arm(model, None, shape, batch), _Arm(model, replace(method, path="fast"), shape, batch)
    arms = [plain, fast]
    if reference:
        arms.append(_Arm(model, replace(method, path="reference"), shape, batch))
    for number in range(PROMPT_ROUNDS):
        for arm in arms[:2] if number % 2 else arms[1::-1]:
            arm.prefill()
    for arm in arms[2:]:
        arm.prefill()
    for arm in arms[:2]:
        arm.steps(method.interval)  # to warm up; the refresh is the last step of each round
    times: list[list[list[float]]] = []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        # step by step in turns, so that both meet the same moods of the machine
        pair: list[list[float]] = [[], []]
        for step in range(method.interval):
            for i in (0, 1) if step % 2 else (1, 0):
                pair[i] += arms[i].steps(1)
        # the reference is too slow for every round
        times.append(pair + [arm.steps(method.interval) for arm in arms[2:] if number < REFERENCE_ROUNDS])
    return _summary(
        model.config.model_type if given else preset,
        shape,
        model,
        method,
        threads,
        batch,
        arms,
        times,
    )


def _summary(
    preset: str,
    shape: Shape,
    model: Any,
    method: HEAL,
    threads: int,
    batch: int,
    arms: list[_Arm],
    times: list[list[list[float]]],
) -> Speed:
    interval = method.interval

    def step_s(steps: list[float]) -> float:
        """A step of a round: the refresh is the last one, and a hiccup of the machine elsewhere does not count."""
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
        preset=preset,
        layers=layers,
        batch=batch,
        dtype=str(model.dtype).removeprefix("torch."),
        threads=threads,
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
        prefill_ratio=(fast.prefill_s - plain_s / batch) / arms[0].prefill_s,
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
    """Bytes that the method keeps between steps, and the most that it holds beside the model within one."""
    assert arm.attachment is not None
    assert arm.attachment.latest is not None
    state = arm.attachment.latest.state
    kept = sum(m.nbytes for m in state.moments if m is not None)
    kept += sum(t.numel() * t.element_size() for t in (state.found.types, state.found.chosen))
    with arm.attached(), _Peak(arm.attachment) as peak:
        arm.model(input_ids=arm.token, past_key_values=arm.cache, use_cache=True)
    return kept, peak.most


class _Peak(TorchDispatchMode):
    """The most bytes alive at one time among tensors made inside the method's attention."""

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
    """Whether it is a view or the same tensor changed in place."""
    here = out.untyped_storage().data_ptr()
    return any(isinstance(a, Tensor) and a.untyped_storage().data_ptr() == here for a in args)


def _shape_of(model: Any) -> Shape:
    text = model.config.get_text_config()
    return Shape(
        text.hidden_size,
        text.intermediate_size,
        text.num_attention_heads,
        text.num_key_value_heads,
        positions=640,
        visual=576,
    )
