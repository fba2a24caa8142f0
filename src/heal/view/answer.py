"""What the answer view shows: one or several answers to one prompt, from traces or answers."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from heal.errors import ConfigError
from heal.json_values import json_values
from heal.trace import Trace
from heal.trace_parts import TracedImage
from heal.view.format import COARSE, FINE, head, number, numbers, packed_scores, packed_types
from heal.view.marks import Find, finder, marks
from heal.view.patches import MOST_BYTES, patch_data

if TYPE_CHECKING:
    from heal.generate import Answer

SCORES = ("visual", "language", "total", "contribution", "beta", "gamma")
HELD = "contribution"
"""Measured at refreshes only."""
FINE_VALUES = 400_000
"""Up to so many values of scores in all answers 16 bits are stored for each, otherwise 8."""
SMALL_VALUES = 1_500_000
"""In a notebook cell, scores of single heads are left out beyond this."""


@dataclass(frozen=True)
class Shown:
    """One answer of the view. What is unknown is empty."""

    text: str
    tokens: Sequence[str] = ()
    logprobs: Sequence[float] = ()
    risk: Sequence[float] | None = None
    words: Sequence[Mapping[str, Any]] | None = None
    """The object words with their risks and reasons, as `risky_word` gives them. None if risks are not known."""
    fired: Mapping[str, Any] | None = None
    method: str = ""
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    trace: Trace | None = None

    @classmethod
    def of(cls, answer: Answer | Trace) -> Shown:
        """From a trace, or from an answer with or without one."""
        trace = answer if isinstance(answer, Trace) else answer.trace
        fired, risk = getattr(answer, "fired", None), getattr(answer, "risk", None)
        judged = getattr(answer, "judged", None)
        known: dict[str, Any] = {"risk": risk, "fired": None if fired is None else dataclasses.asdict(fired)}
        if judged is not None:
            known["words"] = [risky_word(dataclasses.asdict(word), judged.threshold) for word in judged.objects]
        if trace is None:
            return cls(text=answer.text, **known)
        config = dict(trace.config)
        method, model = (str(config.pop(name, "")) for name in ("method", "model"))
        return cls(
            text=trace.text,
            tokens=trace.tokens,
            logprobs=trace.logprobs.tolist(),
            method="plain" if config.get("calibrate") is False else method,
            model=model,
            options=config,
            trace=trace,
            **known,
        )


def risky_word(word: Mapping[str, Any], threshold: float) -> dict[str, Any]:
    """An object word of an answer with its risk, and what raised and lowered it."""
    start, stop = word["tokens"]
    return {
        "start": int(start),
        "stop": int(stop),
        "category": str(word["category"]),
        "risk": number(float(word["risk"])),
        "doubtful": bool(word["risk"] >= threshold),
        "reasons": [[str(reason["about"]), number(float(reason["log_odds"]))] for reason in word["reasons"]],
    }


def answer_data(
    answers: Mapping[str, Answer | Trace | Shown] | Answer | Trace,
    *,
    objects: Collection[str] | None = None,
    find: Find | None = None,
    title: str = "",
    notes: Sequence[str] = (),
    small: bool = False,
) -> dict[str, Any]:
    """The data of an answer view, plain JSON (docs/view.md).

    `answers`: one answer or trace, or several to the same prompt by name, the plain model first. `objects`: what the
    picture shows, where that is known; other object names in the text are marked as hallucinated. `find` finds the
    names (default: those of the miniature world for the embedded model, otherwise CHAIR's). `notes`: lines above the
    view. `small`: leave out the scores of single heads if there are very many.
    """
    named = answers if isinstance(answers, Mapping) else {"": answers}
    shown = {name: one if isinstance(one, Shown) else Shown.of(one) for name, one in named.items()}
    if not shown:
        raise ConfigError("there is nothing to show: give an answer, a trace, or {name: answer, …}")
    traces = [one.trace for one in shown.values() if one.trace is not None]
    values = sum(trace.types.size for trace in traces) * len(SCORES)
    bits = FINE if values <= FINE_VALUES else COARSE
    scores = () if small and values > SMALL_VALUES else SCORES
    first = next(iter(traces), None)
    prompt = "" if first is None else question(first)
    data = head("answer", title or prompt or "Answer")
    return data | {
        "prompt": prompt,
        "notes": list(notes),
        "images": [] if first is None else [picture(image) for image in first.images],
        "objects": None if objects is None else sorted(objects),
        "answers": [
            _answer(name, one, objects, find or finder(one.model))
            | _heads(one.trace, bits, scores)
            | {"patches": None if small else patch_data(one.trace, MOST_BYTES // len(shown))}
            for name, one in shown.items()
        ],
    }


def question(trace: Trace) -> str:
    """The text of the last message of the user, or the rendered prompt."""
    for message in reversed(trace.messages):
        content = message.get("content")
        if message.get("role") == "user":
            parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            return " ".join(text for text in texts if isinstance(text, str)).strip()
    return trace.prompt


def picture(image: TracedImage) -> dict[str, Any]:
    kind = "png" if image.thumbnail.startswith(b"\x89PNG") else "jpeg"
    source = f"data:image/{kind};base64,{base64.b64encode(image.thumbnail).decode()}"
    return {"source": source, "width": image.width, "height": image.height}


def _answer(name: str, one: Shown, objects: Collection[str] | None, find: Find) -> dict[str, Any]:
    written = "".join(one.tokens) or one.text
    return {
        "name": name or one.method or "answer",
        "method": one.method,
        "model": one.model,
        "options": json_values(dict(one.options)),
        "text": one.text,
        "tokens": list(one.tokens) or None,
        "logprobs": numbers(one.logprobs),
        "risk": None if one.risk is None else numbers(list(map(float, one.risk))),
        "words": None if one.words is None else [dict(word) for word in one.words],
        "alternatives": None if one.trace is None else alternatives(one.trace),
        "mentions": [] if objects is None else marks(written, objects, find),
        "fired": json_values(one.fired) if one.fired else None,
    }


def alternatives(trace: Trace) -> list[list[list[Any]]] | None:
    """The likeliest other tokens of each step as [text, log-probability]; None if the trace has none."""
    if not trace.alternative_tokens:
        return None
    pairs = zip(trace.alternative_tokens, trace.alternative_logprobs.tolist(), strict=True)
    found = [[[text, number(value)] for text, value in zip(*step, strict=False)] for step in pairs]
    return [[own for own in step if own[1] is not None] for step in found]


def _optional(trace: Trace, name: str) -> list[float | None] | None:
    """A series that only newer traces have."""
    found = getattr(trace, name, None)
    return None if found is None else numbers(np.asarray(found, float).tolist())


def _heads(trace: Trace | None, bits: int, scores: Sequence[str]) -> dict[str, Any]:
    """The measurements of the heads; empty without a trace, or if nothing was measured."""
    if trace is None or not trace.types.size:
        return {"entropy": None, "margin": None, "share": None, "equilibrium": None, "refreshed": [], "heads": None}
    heads: dict[str, Any] = {"layers": trace.layers, "heads": trace.heads, "types": packed_types(trace.types)}
    heads |= {name: packed_scores(getattr(trace, name), bits, name == HELD) for name in scores}
    measured = bool(np.isfinite(trace.total).any() or (trace.types != 255).any())
    equilibrium = trace.config.get("equilibrium")
    return {
        "entropy": _optional(trace, "entropy"),
        "margin": _optional(trace, "margin"),
        "share": numbers(trace.mean_alpha().tolist()),
        "equilibrium": float(equilibrium) if isinstance(equilibrium, (int, float)) else None,
        "refreshed": np.flatnonzero(trace.refreshed).tolist(),
        "heads": heads if measured else None,
    }
