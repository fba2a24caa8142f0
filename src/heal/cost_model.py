"""Predict the time of a decoding step on a GPU from counted launches and the bytes that have to be read.

A step takes `launches × time per launch` if the host cannot launch faster, and `bytes ÷ bandwidth` if the memory is
the limit. The two overlap: while one kernel reads, the host prepares the next. So the larger of the two is the best
case (`overlapped`), and their sum, where nothing overlaps, the worst (`serial`). Everything here is predicted, not
measured: kernels are assumed to reach the full bandwidth, and arithmetic to be free, which holds for decoding with
small batches only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heal.errors import ConfigError
from heal.speed_model import PRESETS, Shape

HALF = 2
"""Bytes of a number in fp16."""
FULL = 4
FUSED_LAUNCHES = 7.3
"""Launches per token and layer that the fused path adds to plain, with a refresh every ten steps: counted on the
embedded model with Numba, whose step is three calls. Triton's is one or two. Used where neither can be counted."""
BATCHES = (1, 8, 32)
CONTEXTS = (1024, 8192, 32768)
LABEL = "predicted, not measured"


@dataclass(frozen=True)
class Device:
    """What limits a decoding step."""

    name: str
    launch_us: float
    """Host time per launch, in microseconds."""
    bandwidth_gbs: float
    """Memory bandwidth in 10⁹ bytes per second."""

    def __post_init__(self) -> None:
        if min(self.launch_us, self.bandwidth_gbs) <= 0:
            raise ConfigError("launch_us and bandwidth_gbs must be greater than 0")


DEVICES = {"a100": Device("a100", 5.0, 2039.0), "h100": Device("h100", 5.0, 3352.0)}
"""The 80 GB models with SXM, by their data sheets. 5 µs is usual for a launch from Python through torch."""


@dataclass(frozen=True)
class Decoder:
    """The parts of a real model that a decoding step reads."""

    shape: Shape
    layers: int
    vocabulary: int

    @property
    def weight_bytes(self) -> int:
        """The weights of all layers and of the output layer in fp16. The embedding table is read by row."""
        s = self.shape
        dim = s.hidden // s.heads
        attention = 2 * s.hidden * s.hidden + 2 * s.hidden * s.kv_heads * dim
        return HALF * (self.layers * (attention + 3 * s.hidden * s.intermediate) + s.hidden * self.vocabulary)

    def kv_bytes(self, batch: int, context: int) -> int:
        """Keys and values of all layers in fp16."""
        s = self.shape
        return HALF * 2 * self.layers * batch * context * s.kv_heads * (s.hidden // s.heads)


DECODERS = {
    "llava-1.5-7b": Decoder(PRESETS["llava-1.5-7b"], 32, 32064),
    "qwen2.5-vl-7b": Decoder(PRESETS["qwen2.5-vl-7b"], 28, 152064),
}


def extra_bytes(path: str, decoder: Decoder, batch: int, context: int) -> int:
    """What a path moves beside the weights and one pass over keys and values, in all layers.

    The moments of two groups are read and written in fp32. `fast` also writes and reads, in fp32, the scores of every
    query head. `fast,gaussian` has draws too, whose number is one per head and position and does not grow with the
    batch. `reference` materialises noise keys and values in fp32 for two groups, and reads the
    real ones again. `fused` keeps scores and draws on the chip.
    """
    s = decoder.shape
    dim = s.hidden // s.heads
    moments = 2 * FULL * batch * 2 * s.kv_heads * 2 * dim
    scores = 3 * FULL * batch * s.heads * context
    draws = 2 * FULL * s.heads * context
    if path in ("plain", "fused"):
        return decoder.layers * moments * (path == "fused")
    if path in ("fast", "fast,gaussian"):
        return decoder.layers * (moments + scores + draws * (path == "fast,gaussian"))
    if path == "reference":
        states = batch * context * s.kv_heads * dim * 2  # elements of keys and values
        copies = 2 * (2 * FULL * states) + HALF * states  # per group: written and read; and the plain pass
        return decoder.layers * (copies + 3 * scores + 2 * FULL * states)
    raise ConfigError(f"there is no cost model for the path {path!r}: choose fast, fast,gaussian, fused or reference")


@dataclass(frozen=True)
class Prediction:
    """One row of the table: predicted, not measured."""

    device: str
    model: str
    path: str
    batch: int
    context: int
    launches: float
    """Per token and layer."""
    launch_ms: float
    memory_ms: float
    overlapped: float
    """Ratio to the plain model if launches and memory overlap: the larger of the two counts."""
    serial: float
    """Ratio to the plain model if nothing overlaps: their sum counts."""
    captured: float
    """Ratio if both are replayed as a CUDA graph, so that only memory counts."""
    label: str = LABEL

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def step_ms(device: Device, decoder: Decoder, launches: float, moved: int) -> tuple[float, float]:
    """Milliseconds of launching and of moving bytes in one step."""
    return launches * decoder.layers * device.launch_us / 1e3, moved / device.bandwidth_gbs / 1e6


def predict(
    device: Device,
    launches: Mapping[str, float],
    models: Sequence[str] = tuple(DECODERS),
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
) -> list[Prediction]:
    """Ratios over plain. `launches`: per token and layer by path, with `plain` (see `counted`)."""
    if "plain" not in launches:
        raise ConfigError("the launches of the plain model are missing: give them as 'plain'")
    return [
        _row(device, model, path, (batch, context), launches)
        for model in models
        for path in launches
        if path != "plain"
        for batch in batches
        for context in contexts
    ]


def _row(device: Device, model: str, path: str, size: tuple[int, int], launches: Mapping[str, float]) -> Prediction:
    decoder = DECODERS[model]
    plain_bytes = decoder.weight_bytes + decoder.kv_bytes(*size)
    base = step_ms(device, decoder, launches["plain"], plain_bytes)
    own = step_ms(device, decoder, launches[path], plain_bytes + extra_bytes(path, decoder, *size))
    return Prediction(
        device=device.name,
        model=model,
        path=path,
        batch=size[0],
        context=size[1],
        launches=launches[path],
        launch_ms=own[0],
        memory_ms=own[1],
        overlapped=max(own) / max(base),
        serial=sum(own) / sum(base),
        captured=own[1] / base[1],
    )


def counted(found: Mapping[str, float]) -> dict[str, float]:
    """Launches by path from counts by method (`heal:fast`, `heal:fused (Numba)` …), with the known count of the fused
    path if it could not be counted."""
    launches = {
        name.removeprefix("heal:").partition(" (")[0]: n
        for name, n in found.items()
        if name == "plain" or name.startswith("heal:")
    }
    launches.setdefault("fused", launches["plain"] + FUSED_LAUNCHES)
    return launches
