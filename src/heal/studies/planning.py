"""What a study would need: data, checkpoint, samples, and time. Nothing is measured on images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heal.bench.tasks.image_presence import presence
from heal.cost_model import DECODERS, DEVICES, FUSED_LAUNCHES, LABEL, extra_bytes, step_ms
from heal.errors import HealError
from heal.methods import HEAL, Method
from heal.studies.parts import Evaluation, Measurement, Part
from heal.studies.setup import Setup
from heal.studies.study import Study
from heal.vlm import VLM

PLAIN_LAUNCHES = 42.0
"""Launches per token and layer of the plain model, counted on the embedded one (docs/speed.md)."""
TIMED_TOKENS = 24
CAPTION = 128
"""Maximum number of tokens of a caption in the miniature world."""


@dataclass(frozen=True)
class PartPlan:
    """One part of a study."""

    study: str
    part: str
    samples: int
    answers: int
    """Samples × methods."""
    tokens: int
    """At most, over all answers."""
    hours: float
    """NaN if the speed of the model is unknown."""
    problem: str = ""
    """Why it cannot be measured: which data is missing and where to get it."""


@dataclass(frozen=True)
class Speed:
    """Seconds per generated token and row, in a batch of the chosen size."""

    plain: float
    measured: float
    """With HEAL."""
    source: str


def planned(studies: Sequence[Study], setup: Setup, speed: Speed) -> list[PartPlan]:
    """All parts of these studies, each once even if several studies need it."""
    found: list[PartPlan] = []
    seen = set[str]()
    for study in studies:
        try:
            parts = study.parts(setup)
        except HealError as error:
            found.append(PartPlan(study.name, "", 0, 0, 0, float("nan"), str(error)))
            continue
        for part in parts:
            text = str(part.content())
            if text not in seen:
                seen.add(text)
                found.append(_planned(study, part, speed))
    return found


def _planned(study: Study, part: Part, speed: Speed) -> PartPlan:
    samples = _samples(part)
    seen = presence(samples)
    problem = seen.description() if seen.missing else ""
    tokens = _tokens(part)
    return PartPlan(study.name, part.name, len(samples), part.answers, tokens, _seconds(part, speed) / 3600, problem)


def _samples(part: Part) -> list[Any]:
    if isinstance(part, Measurement):
        return list(part.samples)
    return [sample for task in part.tasks.values() for sample in task.samples()]


def _tokens(part: Part) -> int:
    if isinstance(part, Measurement):
        return part.answers * part.tokens
    return len(part.methods) * _task_tokens(part)


def _task_tokens(part: Evaluation) -> int:
    return sum(len(t.samples()) * int(part.settings.decoding(t)["max_new_tokens"]) for t in part.tasks.values())


def _seconds(part: Part, speed: Speed) -> float:
    if isinstance(part, Measurement):
        return part.answers * part.tokens * part.passes * speed.measured
    return _task_tokens(part) * sum(_per_token(method, speed) for method in part.methods.values())


def _per_token(method: Method | None, speed: Speed) -> float:
    """HEAL costs more than the plain model; other methods are taken to cost as much as HEAL."""
    return speed.plain if method is None else speed.measured


# ── speed ─────────────────────────────────────────────────────────────────────────────────────────────────


def measured_speed(vlm: VLM, setup: Setup) -> Speed:
    """Time a short generation of the loaded model on a grey image, plain and with HEAL."""
    from PIL import Image

    images = [Image.new("RGB", (96, 96), "grey")] * setup.batch_size
    prompts = ["Please describe this image in detail."] * setup.batch_size

    def seconds(method: Method | None) -> float:
        options: dict[str, Any] = {"min_new_tokens": TIMED_TOKENS, "max_new_tokens": TIMED_TOKENS, "do_sample": False}
        vlm.generate(images[:1], prompts[:1], method=method, max_new_tokens=2, do_sample=False)  # compiles
        start = time.perf_counter()
        vlm.generate(images, prompts, method=method, **options)
        return (time.perf_counter() - start) / (TIMED_TOKENS * setup.batch_size)

    return Speed(seconds(None), seconds(HEAL(calibrate=False)), f"measured on this machine, batch {setup.batch_size}")


def predicted_speed(model: str, setup: Setup, device: str = "a100", context: int = 1024) -> Speed:
    """The cost model's prediction for a known decoder on a GPU; NaN for other models."""
    name = next((name for name in DECODERS if name in model.lower()), None)
    if name is None:
        return Speed(float("nan"), float("nan"), "unknown: the checkpoint is not here to be timed")
    decoder, gpu, batch = DECODERS[name], DEVICES[device], setup.batch_size
    read = decoder.weight_bytes + decoder.kv_bytes(batch, context)
    plain = max(step_ms(gpu, decoder, PLAIN_LAUNCHES, read)) / 1e3 / batch
    moved = read + extra_bytes("fused", decoder, batch, context)
    healed = max(step_ms(gpu, decoder, PLAIN_LAUNCHES + FUSED_LAUNCHES, moved)) / 1e3 / batch
    return Speed(plain, healed, f"{LABEL}: {name} on one {device.upper()}, batch {batch}")


def command(names: Sequence[str], arguments: Sequence[str], processes: int = 4) -> str:
    """How to run the studies on several GPUs of one machine."""
    return f"accelerate launch --num_processes {processes} -m heal study {' '.join([*names, *arguments])}"


def total_hours(parts: Sequence[PartPlan]) -> float:
    return sum((part.hours for part in parts if not part.problem), start=0.0)


def cost_line(study: Study) -> str:
    """The cost of a study in the miniature world, for the list."""
    try:
        parts = study.parts(Setup(samples=100))
    except HealError:
        return "needs official data"
    tokens = sum(_tokens(part) * (part.passes if isinstance(part, Measurement) else 1) for part in parts)
    return f"100 images cost as much as {max(1, round(tokens / CAPTION)):,} captions"
