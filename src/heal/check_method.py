"""Check the properties that every method must have, on a small random model or another one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from heal.engine.transformers_api import attention_name
from heal.errors import HealError, HealWarning, first_line
from heal.generate import Answer
from heal.methods.base import Method
from heal.vlm import VLM

PROMPTS = ("What is in this image?", "Describe the image in as many words as you like.", "Is there a dog?")
TOKENS = 5
TOLERANCE = 1e-3
"""Tolerance of log-probabilities between a row alone and the same row in a padded batch."""


@dataclass(frozen=True)
class Verdict:
    """The result of one check."""

    law: str
    holds: bool | None
    """None: not checked."""
    detail: str = ""


def check_method(method: Method, neutral: Method | None = None, vlm: VLM | None = None) -> list[Verdict]:
    """Run all checks. `neutral` is the same method with options that should change nothing.

    A method that refuses the model or its own options raises its error, because then nothing can be checked.
    """
    vlm = vlm or VLM.random()
    for chosen in (method, neutral):
        if chosen is not None:
            _attach(chosen, vlm)
    images = _images()
    laws: list[tuple[str, Callable[[], tuple[bool | None, str]]]] = [
        ("it runs, with a trace", lambda: _runs(vlm, images, method)),
        ("neutral strength is the plain model", lambda: _neutral(vlm, images, neutral)),
        ("a row alone is the row in a batch", lambda: _row_alone(vlm, images, method)),
        ("counters are honest", lambda: _honest(vlm, images, method)),
        ("two runs are equal", lambda: _repeats(vlm, images, method)),
        ("nothing remains", lambda: _nothing_remains(vlm, images, method)),
    ]
    return [_judged(name, law) for name, law in laws]


def _attach(method: Method, vlm: VLM) -> None:
    """Raise the method's error if it refuses the model. The checks report errors of other types."""
    try:
        with method.attach(vlm.model):
            pass
    except HealError:
        raise
    except Exception:
        return


def _judged(name: str, law: Callable[[], tuple[bool | None, str]]) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HealWarning)
        try:
            return Verdict(name, *law())
        except Exception as error:  # third-party methods may raise anything
            kind = "" if isinstance(error, HealError) else f"{type(error).__name__}: "
            return Verdict(name, False, kind + first_line(error))


def _images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)) for _ in PROMPTS]


def _ask(vlm: VLM, images: Sequence[Any], method: Method | None, trace: bool = False) -> list[Answer]:
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return vlm.generate(list(images), list(PROMPTS[: len(images)]), method=method, trace=trace, **options)


def _far(one: Answer, other: Answer) -> float:
    """The largest difference of log-probabilities, or infinity if tokens differ."""
    if one.token_ids != other.token_ids:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def _runs(vlm: VLM, images: list[Image.Image], method: Method) -> tuple[bool, str]:
    answers = _ask(vlm, images, method, trace=True)
    steps = [answer.trace.steps for answer in answers if answer.trace is not None]
    return steps == [TOKENS] * len(images), f"{len(answers)} answers, traces of {steps} steps"


def _neutral(vlm: VLM, images: list[Image.Image], neutral: Method | None) -> tuple[bool | None, str]:
    if neutral is None:
        return None, "give the options that change nothing: --neutral strength=0"
    pairs = zip(_ask(vlm, images, neutral), _ask(vlm, images, None), strict=True)
    far = max(_far(one, plain) for one, plain in pairs)
    return far == 0, f"log-probabilities differ by {far:.1g}"


def _row_alone(vlm: VLM, images: list[Image.Image], method: Method) -> tuple[bool, str]:
    batch = _ask(vlm, images, method)
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    alone = [vlm.generate(i, p, method=method, **options) for i, p in zip(images, PROMPTS, strict=True)]
    far = max(_far(one, other) for one, other in zip(alone, batch, strict=True))
    return far <= TOLERANCE, f"log-probabilities differ by {far:.1g}"


def _honest(vlm: VLM, images: list[Image.Image], method: Method) -> tuple[bool, str]:
    """Rows without counted changes must equal the plain model and give a reason."""
    for row, (answer, plain) in enumerate(zip(_ask(vlm, images, method), _ask(vlm, images, None), strict=True)):
        assert answer.fired is not None
        if not answer.fired and _far(answer, plain) > TOLERANCE:
            return False, f"row {row} differs from the plain model, but no change was counted"
        if not answer.fired and not answer.fired.reason:
            return False, f"row {row} was not changed, but no reason is given"
    return True, ""


def _repeats(vlm: VLM, images: list[Image.Image], method: Method) -> tuple[bool, str]:
    before = torch.get_rng_state()
    pairs = zip(_ask(vlm, images, method), _ask(vlm, images, method), strict=True)
    far = max(_far(one, other) for one, other in pairs)
    if not torch.equal(torch.get_rng_state(), before):
        return False, "it draws from torch's global generator: use a generator of its own"
    return far == 0, f"log-probabilities differ by {far:.1g}"


def _nothing_remains(vlm: VLM, images: list[Image.Image], method: Method) -> tuple[bool, str]:
    before, plain = _footprint(vlm.model), _ask(vlm, images, None)
    _ask(vlm, images, method)
    if _footprint(vlm.model) != before:
        return False, "hooks, attributes or settings remain on the model"
    far = max(_far(one, other) for one, other in zip(_ask(vlm, images, None), plain, strict=True))
    return far == 0, f"the plain model differs by {far:.1g} afterwards"


def _footprint(model: Any) -> Any:
    """Hooks, attributes, settings and weights that attaching could leave changed."""
    modules = dict(model.named_modules())
    hooks = {
        name: [len(vars(m)[kind]) for kind in sorted(vars(m)) if kind.endswith("_hooks")]
        for name, m in modules.items()
    }
    kinds = {name: attention_name(m.config) for name, m in modules.items() if hasattr(m, "config")}
    weights = [float(p.detach().double().sum()) for p in model.parameters()]
    return hooks, kinds, {name: sorted(vars(m)) for name, m in modules.items()}, weights
