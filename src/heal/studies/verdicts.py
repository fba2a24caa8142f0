"""One sentence about a claim, computed from a measured difference and its interval."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from heal.bench.score.bootstrap import Interval
from heal.studies.answered import Answered
from heal.studies.statistics import FEWEST
from heal.studies.study import Outcome, Value, Verdict


def judged(claim: str, difference: Value, of: str = "hallucinated tokens") -> Verdict:
    """Whether a difference has the direction in its `expected`: `drift confirmed: 0.10 (0.08 to 0.12), paper 0.15`.

    `of` and `difference.n` say what it was measured on, in case there is too little.
    """
    if not difference.has_interval:
        return Verdict(claim, Outcome.TOO_FEW, _too_few(claim, difference, of))
    outcome = _outcome(difference)
    printed = "" if difference.paper is None else f", paper {_number(difference)}"
    return Verdict(claim, outcome, f"{claim} {outcome}: {difference}{printed}")


def compared(claim: str, found: Interval, answered: Answered, methods: tuple[str, str], **shown: Any) -> Verdict:
    """Judge a difference between the answers of two methods. There is no verdict on fewer than `FEWEST` images, or if
    both methods together make hardly a mistake: resampling them says nothing about other images.

    `shown`: fields of `Value`, such as `expected` and `paper`.
    """
    what, n = answered.behind(*methods)
    return judged(claim, enough(Value.of(found, n=n, **shown)), what)


def enough(found: Value) -> Value:
    """The value without its interval if fewer than `FEWEST` images or tokens are behind it."""
    return found if found.n is None or found.n >= FEWEST else replace(found, low=math.nan, high=math.nan)


def _outcome(difference: Value) -> Outcome:
    low, high = difference.low, difference.high
    if difference.expected == "=":
        return Outcome.CONSISTENT if low <= 0 <= high else Outcome.CONTRADICTED
    if difference.expected not in ("↑", "↓"):
        return Outcome.MEASURED
    if low <= 0 <= high:
        return Outcome.NOT_CONFIRMED
    return Outcome.CONFIRMED if (low > 0) == (difference.expected == "↑") else Outcome.CONTRADICTED


def _too_few(claim: str, difference: Value, of: str) -> str:
    known = "" if difference.n is None else f" ({difference.n}; an interval needs {FEWEST})"
    return f"{claim}: too few {of}{known}, so there is no verdict: measure more images"


def _number(value: Value) -> str:
    return f"{value.paper:.{value.digits}f}" if isinstance(value.paper, float) else str(value.paper)
