"""Doubtful words of an answer in a terminal, and risks as JSON."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from heal.escape import visible

if TYPE_CHECKING:
    from heal.detect.risk import Judged, ObjectRisk
    from heal.generate import Answer

UNDERLINED, PLAIN = "\x1b[4;31m", "\x1b[0m"


def coloured() -> bool:
    """Whether standard output is a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def marked(answer: Answer, colours: bool) -> str:
    """The text with its doubtful words underlined, or as [?word 0.83?] without colours. All text is escaped."""
    parts, at = [], 0
    for word in sorted(answer.doubtful, key=lambda own: own.span):
        parts += [visible(answer.text[at : word.span[0]]), _mark(word, colours)]
        at = word.span[1]
    return "".join([*parts, visible(answer.text[at:])])


def _mark(word: ObjectRisk, colours: bool) -> str:
    return f"{UNDERLINED}{visible(word.text)}{PLAIN}" if colours else f"[?{visible(word.text)} {word.risk:.2f}?]"


def explain(judged: Judged) -> str:
    """One line for each doubtful word, with what raised and lowered its risk."""
    if not judged.objects:
        return "risk: the answer names no objects"
    if not judged.doubtful:
        highest = max(word.risk for word in judged.objects)
        return f"risk: no doubtful words; the highest risk of {len(judged.objects)} object words is {highest:.2f}"
    return "\n".join(f"risk: {_explained(word)}" for word in judged.doubtful)


def _explained(word: ObjectRisk) -> str:
    reasons = ", ".join(f"{reason.about} {reason.log_odds:+.1f}" for reason in word.reasons)
    return f"{word.text} ({word.category}) is hallucinated with a probability of {word.risk:.2f}: {reasons}"


def as_dict(judged: Judged | None) -> dict[str, Any]:
    """The risks of an answer, or nothing if they were not asked for."""
    if judged is None:
        return {}
    return {
        "risk": list(judged.risk),
        "objects": [asdict(word) for word in judged.objects],
        "doubtful": [asdict(word) for word in judged.doubtful],
        "threshold": judged.threshold,
    }
