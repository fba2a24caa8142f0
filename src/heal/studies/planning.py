"""What a study would need: data, checkpoint, samples, and time. Nothing is measured on images."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from heal.bench.run.names import method_name
from heal.bench.tasks.image_presence import presence
from heal.cost_model import DECODERS, DEVICES, FUSED_LAUNCHES, LABEL, extra_bytes, step_ms
from heal.errors import DataError, HealError, HealWarning
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


COSTLY = ("preset", "masking", "covariance", "replacement", "draws", "path", "compile")
"""Options of HEAL that change its cost."""


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
    """How long a generated token of one row takes, in a batch of the chosen size."""

    seconds: Callable[[Method | None], float]
    """By method; None is the plain model. NaN if it is unknown."""
    source: str


@dataclass(frozen=True)
class Wanted:
    """A part that a study asks for, or why it cannot say what it asks for."""

    study: Study
    part: Part | None
    problem: str = ""


def wanted(studies: Sequence[Study], setup: Setup) -> list[Wanted]:
    """All parts of these studies, each once even if several studies need it. Their images may be missing."""
    setup = replace(setup, need_images=False)
    found: list[Wanted] = []
    seen = set[str]()
    for study in studies:
        try:
            if problem := study.missing(setup):
                raise DataError(problem)
            parts = study.parts(setup)
        except HealError as error:
            found.append(Wanted(study, None, str(error)))
            continue
        found += [Wanted(study, None, why) for name in study.any_of if (why := setup.missing(name))]
        for part in parts:
            text = str(part.content())
            if text not in seen:
                seen.add(text)
                found.append(Wanted(study, part))
    return found


def methods_of(parts: Sequence[Wanted]) -> list[Method]:
    """The methods whose speed matters, one for all forms that cost the same."""
    every = [m for w in parts if isinstance(w.part, Evaluation) for m in w.part.methods.values() if m is not None]
    return list({cost_name(method): representative(method) for method in every}.values())


def representative(method: Method) -> Method:
    """HEAL costs the same whatever its equilibrium and thresholds are. Other methods stand for themselves."""
    if not isinstance(method, HEAL):
        return method
    same = {name: getattr(method, name) for name in COSTLY}
    return HEAL(**same, calibrate=False)


def cost_name(method: Method) -> str:
    return method_name(representative(method))


def planned(parts: Sequence[Wanted], speed: Speed) -> list[PartPlan]:
    """Samples, tokens and hours of all parts."""
    return [
        PartPlan(w.study.name, "", 0, 0, 0, 0.0, w.problem) if w.part is None else _planned(w.study, w.part, speed)
        for w in parts
    ]


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
        return part.answers * part.tokens * part.passes * speed.seconds(HEAL())
    return _task_tokens(part) * sum(speed.seconds(method) for method in part.methods.values())


# ── speed ─────────────────────────────────────────────────────────────────────────────────────────────────


def measured_speed(vlm: VLM, setup: Setup, methods: Sequence[Method] = ()) -> Speed:
    """Time a short generation of the loaded model on a grey image: plain, with HEAL, and with each of the methods."""
    from PIL import Image

    image, prompt = Image.new("RGB", (96, 96), "grey"), "Please describe this image in detail."

    def timed(method: Method | None) -> float:
        """Seconds per token and row. A method that answers prompts one by one needs only one of them."""
        rows = 1 if method is not None and method.one_sample else setup.batch_size
        options: dict[str, Any] = {"min_new_tokens": TIMED_TOKENS, "max_new_tokens": TIMED_TOKENS, "do_sample": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HealWarning)  # a method may change nothing in so few tokens
            vlm.generate([image], [prompt], method=method, max_new_tokens=2, do_sample=False)  # compiles
            start = time.perf_counter()
            vlm.generate([image] * rows, [prompt] * rows, method=method, **options)
        return (time.perf_counter() - start) / (TIMED_TOKENS * rows)

    plain = timed(None)
    found: dict[str, float] = {}
    for method in (HEAL(), *methods):
        name = cost_name(method)
        if name not in found:
            try:
                found[name] = timed(representative(method))
            except HealError:  # it does not suit this model: its study leaves it out, or says why it cannot
                found[name] = 0.0
    source = f"measured on this machine, batch {setup.batch_size}"
    return Speed(lambda method: plain if method is None else found.get(cost_name(method), math.nan), source)


def predicted_speed(model: str, setup: Setup, device: str = "a100", context: int = 1024) -> Speed:
    """The cost model's prediction for a known decoder on a GPU; NaN for other models."""
    name = next((name for name in DECODERS if name in model.lower()), None)
    if name is None:
        return Speed(lambda method: math.nan, "unknown: the checkpoint is not here to be timed")
    decoder, gpu = DECODERS[name], DEVICES[device]

    def seconds(method: Method | None) -> float:
        """Methods other than HEAL: their passes of the plain model, with as many rows as they have beams."""
        passes, beams = (1.0, 1) if method is None else (method.passes_per_token, method.rows_per_prompt)
        rows = 1 if method is not None and method.one_sample else setup.batch_size
        read = decoder.weight_bytes + decoder.kv_bytes(rows * beams, context)
        launches = PLAIN_LAUNCHES
        if isinstance(method, HEAL):
            read += extra_bytes("fused", decoder, rows, context)
            launches += FUSED_LAUNCHES
        return passes * max(step_ms(gpu, decoder, launches, read)) / 1e3 / rows

    return Speed(seconds, f"{LABEL}: {name} on one {device.upper()}, batch {setup.batch_size}")


def command(names: Sequence[str], arguments: Sequence[str], processes: int = 4) -> str:
    """How to run the studies on several GPUs of one machine."""
    return f"accelerate launch --num_processes {processes} -m heal study {' '.join([*names, *arguments])}"


def total_hours(parts: Sequence[PartPlan]) -> float:
    """Also of the parts whose images are missing."""
    return sum((part.hours for part in parts), start=0.0)


@lru_cache(maxsize=1)
def _example() -> Setup:
    return Setup(samples=100)


def cost_line(study: Study) -> str:
    """The cost of a study in the miniature world, for the list."""
    setup = _example()
    if study.missing(setup):
        return "needs official data"
    parts = study.parts(setup)
    tokens = sum(_tokens(part) * (part.passes if isinstance(part, Measurement) else 1) for part in parts)
    return f"100 images cost as much as {max(1, round(tokens / CAPTION)):,} captions"
