"""Launches, host synchronisations and bytes per token: the plain model, the paths of HEAL and every other method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heal.devices import usable_device
from heal.engine.transformers_api import BaseModelOutputWithPooling
from heal.errors import ConfigError, HealError, HealWarning, first_line
from heal.launch_counter import OUTSIDE_OF_TORCH, Counts, LaunchCounter
from heal.methods.base import Method, available
from heal.methods.heal import HEAL
from heal.methods.heal_fused import find
from heal.speed_model import PRESETS, Shape, random_model

if TYPE_CHECKING:
    from heal.engine.source import Source
    from heal.vlm import VLM

PLAIN = "plain"
FUSED = "heal:fused"
"""Followed by the compiler in brackets: heal:fused (Numba), heal:fused (Triton)."""
ROUNDS = 4
"""Refresh intervals that are counted."""
COLOURS = ((200, 60, 40), (40, 90, 200))
QUESTION = "Describe the image."


@dataclass(frozen=True)
class Load:
    """Means over some steps."""

    launches: float
    """Per token and decoder layer."""
    waits: float
    """Host synchronisations per token."""
    read: float
    """Bytes per token."""
    written: float

    @classmethod
    def of(cls, counts: Counts, tokens: int, layers: int) -> Load:
        return cls(
            counts.launches / tokens / layers,
            counts.syncs.total() / tokens,
            counts.read / tokens,
            counts.written / tokens,
        )


@dataclass(frozen=True)
class Wait:
    """A place where the host waits."""

    kind: str
    operation: str
    place: str
    per_token: float
    extra: float
    """What it has more often than the plain model."""


@dataclass(frozen=True)
class MethodLaunches:
    """The counts of one method."""

    name: str
    tokens: int
    mean: Load
    """Over whole refresh intervals."""
    between: Load
    """Between refreshes of HEAL's head types; of other methods, the same as `mean`."""
    refresh: Load
    extra_waits: float
    """Host synchronisations per token that the plain model does not have, between refreshes."""
    waits: tuple[Wait, ...]
    operations: Mapping[str, float]
    """Launches per token and layer by operation, the most frequent first."""
    files: Mapping[str, float]
    """Launches per token and layer by source file."""


@dataclass(frozen=True)
class Launches:
    """The counts of several methods on one model."""

    model: str
    layers: int
    batch: int
    dtype: str
    interval: int
    methods: tuple[MethodLaunches, ...]
    skipped: Mapping[str, str]
    """Methods that could not be counted on this model or machine, with the reason."""

    def method(self, name: str) -> MethodLaunches:
        for found in self.methods:
            if found.name == name:
                return found
        raise ConfigError(f"{name} was not counted: choose one of {', '.join(m.name for m in self.methods)}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Subject:
    """A model with the inputs of generate()."""

    name: str
    model: Any
    inputs: Mapping[str, Any]
    source: Source | None = None
    """Where the inputs come from, for methods that read images or text."""
    special_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, vlm: VLM, images: Sequence[Any], prompts: Sequence[str]) -> Subject:
        """A model with its processor, and what it is asked."""
        request = vlm.request(images, prompts)
        return cls(vlm.name, vlm.model, request.arguments, request.source, tuple(vlm.tokenizer.all_special_ids))

    @property
    def layers(self) -> int:
        return len(self.model.get_decoder().layers)

    @property
    def batch(self) -> int:
        return self.inputs["input_ids"].shape[0]


def embedded_subject(batch: int = 1, device: str = "cpu") -> Subject:
    """The embedded model and a picture."""
    from PIL import Image

    from heal.vlm import VLM

    vlm = VLM.embedded(device=device)
    pictures = [Image.new("RGB", (48, 48), COLOURS[row % len(COLOURS)]) for row in range(batch)]
    return Subject.of(vlm, pictures, [QUESTION] * batch)


def random_subject(preset: str, layers: int, batch: int, dtype: torch.dtype, device: str = "cpu") -> Subject:
    """A random model with the dimensions of a preset. Its visual features are random, there is no picture."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}")
    shape = PRESETS[preset]
    model = random_model(shape, layers, dtype).to(usable_device(device))
    return Subject(preset, model, random_inputs(model, shape, batch))


def random_inputs(model: Any, shape: Shape, batch: int) -> dict[str, Any]:
    """A prompt of random text around one block of visual positions, the same in every row."""
    generator = torch.Generator().manual_seed(1)
    before = min(35, shape.positions - shape.visual)
    ids = torch.randint(8, 128, (1, shape.positions), generator=generator)
    ids[:, before : before + shape.visual] = model.config.image_token_id
    features = 0.02 * torch.randn(shape.visual, shape.hidden, generator=generator)
    place = model.device
    encoded = BaseModelOutputWithPooling(pooler_output=[features.to(place, model.dtype)] * batch)
    return {
        "input_ids": ids.expand(batch, -1).contiguous().to(place),
        "attention_mask": torch.ones(batch, shape.positions, dtype=torch.long, device=place),
        "mm_encoder_outputs": {"image": encoded},
    }


def variants(
    base: HEAL, heal_only: bool = False, device: str | torch.device = "cpu"
) -> tuple[dict[str, Method | None], dict[str, str]]:
    """Plain, every path of HEAL and every other registered method, and why some are left out."""
    found: dict[str, Method | None] = {PLAIN: None}
    skipped: dict[str, str] = {}
    expected = replace(base, path="fast", masking="expected", replacement="expected", draws=1, compile=False)
    found["heal:fast"] = expected
    drawn = replace(expected, masking="gaussian", replacement="gaussian")
    found["heal:fast,gaussian"] = drawn
    functions = find(expected, torch.device(device))
    if isinstance(functions, str):
        skipped[FUSED] = functions
    else:
        found[f"{FUSED} ({functions.name})"] = replace(expected, path="fused")
    # the paper's tensors, which are drawn
    found["heal:reference"] = replace(drawn, path="reference")
    for name, kind in available().items():
        if name != HEAL.name and not heal_only:
            _add(found, skipped, name, kind)
    return found, skipped


def _add(found: dict[str, Method | None], skipped: dict[str, str], name: str, create: Callable[[], Method]) -> None:
    try:
        found[name] = create()
    except (HealError, TypeError) as error:  # a missing package, or an option without default
        skipped[name] = first_line(error)


def count(
    subject: Subject,
    base: HEAL | None = None,
    progress: Callable[[str], None] = lambda _: None,
    heal_only: bool = False,
) -> Launches:
    """Count whole refresh intervals of greedy decoding with every method."""
    base = base or HEAL()
    methods, skipped = variants(base, heal_only, subject.model.device)
    rows: list[MethodLaunches] = []
    plain = Counts()
    for name, method in methods.items():
        progress(name)
        try:
            if isinstance(method, HEAL) and method.noise == "expected":
                steps_of(subject, method, ROUNDS * base.interval)  # noise tables are computed once, on the host
            steps = steps_of(subject, method, ROUNDS * base.interval)
        except HealError as error:
            skipped[name] = first_line(error)
            continue
        if name.startswith(FUSED) and not any(Counts.total(steps).operations[kind] for kind in OUTSIDE_OF_TORCH):
            skipped[name] = "no layer of this model was computed by the compiled functions"
            continue
        if method is None:
            plain = Counts.total(steps)
        interval = base.interval if isinstance(method, HEAL) else 0
        rows.append(summary(name, steps, subject.layers, interval, plain, ROUNDS * base.interval))
    dtype = str(subject.model.dtype).removeprefix("torch.")
    return Launches(subject.name, subject.layers, subject.batch, dtype, base.interval, tuple(rows), skipped)


def steps_of(subject: Subject, method: Method | None, tokens: int) -> list[Counts]:
    """The counts of each step, from the choice of a token to the logits of the next. The prompt is left out."""

    def mark(ids: Tensor, scores: Tensor) -> Tensor:
        counter.mark()
        return scores

    counter = LaunchCounter()
    new = tokens + 1
    given: dict[str, Any] = {"special_ids": subject.special_ids, "source": subject.source}
    with warnings.catch_warnings(), method.attach(subject.model, **given) if method else nullcontext(), counter:
        warnings.simplefilter("ignore", HealWarning)
        subject.model.generate(
            **subject.inputs, min_new_tokens=new, max_new_tokens=new, do_sample=False, logits_processor=[mark]
        )
    return counter.steps[1:]


def summary(
    name: str, steps: Sequence[Counts], layers: int, interval: int, plain: Counts, tokens: int
) -> MethodLaunches:
    """`interval` 0: there are no refreshes. `plain` is the total of the plain model over as many tokens."""
    whole = Counts.total(steps)
    at = [step for number, step in enumerate(steps, 1) if interval and number % interval == 0]
    other = [step for number, step in enumerate(steps, 1) if not interval or number % interval]
    refresh = Load.of(Counts.total(at), len(at), layers) if at else Load.of(whole, tokens, layers)
    between, count = (Counts.total(other), len(other)) if at and other else (whole, tokens)
    waits = tuple(
        Wait(sync.kind, sync.operation, sync.place, n / count, n / count - plain.syncs[sync] / tokens)
        for sync, n in between.syncs.most_common()
    )
    return MethodLaunches(
        name=name,
        tokens=tokens,
        mean=Load.of(whole, tokens, layers),
        between=Load.of(between, count, layers),
        refresh=refresh,
        extra_waits=sum(wait.extra for wait in waits),
        waits=waits,
        operations={key: n / tokens / layers for key, n in whole.operations.most_common()},
        files={key: n / tokens / layers for key, n in whole.files.most_common()},
    )
