"""One variant of decoding on a model, what it keeps and what it needs within a step."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heal.engine.attachment import Attachment
from heal.engine.layout import Layout
from heal.engine.transformers_api import BaseModelOutputWithPooling, DynamicCache
from heal.methods.heal import HEAL
from heal.methods.heal_runtime import HealRuntime
from heal.speed_model import Shape


class Arm:
    """One variant of decoding, with its own KV cache."""

    def __init__(self, model: Any, method: HEAL | None, shape: Shape, batch: int, name: str = "") -> None:
        self.name = name
        self.model = model
        self.batch = batch
        self.attachment: Attachment | None = None
        self.runtime: HealRuntime | None = None
        if method is not None:
            layout = Layout.of(model)
            runtime = method.runtime(layout, trace=False)
            assert isinstance(runtime, HealRuntime)
            self.runtime, self.attachment = runtime, Attachment(layout, runtime)
        self.token = torch.full((batch, 1), 7, device=model.device)
        self.shape = shape
        self.prefills: list[float] = []

    @contextmanager
    def attached(self) -> Iterator[None]:
        with self.attachment if self.attachment is not None else nullcontext():
            yield

    @property
    def implementation(self) -> str:
        """What runs: sdpa for the plain model, or the path of HEAL and its compiler."""
        return "sdpa" if self.runtime is None else self.runtime.implementation

    @property
    def fell_back(self) -> str | None:
        """Why the fused path was not used somewhere."""
        return None if self.runtime is None else self.runtime.fell_back

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
            _synchronise(self.model.device)
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


def calibrated(arm: Arm, heads: int) -> float:
    """Mean share of `heads` heads that were calibrated."""
    assert arm.attachment is not None
    steps = arm.attachment.tallies.latest[-1].steps
    return float(torch.stack([s[0].mean() for s in steps]).mean()) / heads


def memory(arm: Arm) -> tuple[int, int]:
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
