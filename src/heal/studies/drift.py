"""The premise of the paper: synergy heads use the image less when the model names absent objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heal.analysis.taxonomy import HeadType
from heal.studies.objects import ObjectToken
from heal.studies.statistics import Labelled, compare


@dataclass(frozen=True)
class Separation:
    """How well a value separates correct tokens (expected to be higher) from hallucinated ones."""

    value: str
    correct: int
    hallucinated: int
    mean_correct: float
    mean_hallucinated: float
    auc: float
    low: float
    high: float
    within: float
    """AUC among tokens at similar positions of the answer: both hallucinations and drift may increase along it."""


def mean_alpha(token: ObjectToken, kind: HeadType = HeadType.SYNERGY) -> float:
    """Mean α_vis over the heads of one type; NaN if there are none."""
    share = token.alpha_vis[(token.types == int(kind)) & ~np.isnan(token.alpha_vis)]
    return float(share.mean()) if share.size else float("nan")


VALUES: dict[str, Callable[[ObjectToken], float]] = {
    "α_vis of synergy heads": mean_alpha,
    "I_vis / I_total of synergy heads": lambda t: float(t.parts[0]),
    "I_lang / I_total of synergy heads": lambda t: float(t.parts[1]),
    "number of visual heads": lambda t: float((t.types == int(HeadType.VISUAL)).sum()),
    "number of language heads": lambda t: float((t.types == int(HeadType.LANGUAGE)).sum()),
    "number of synergy heads": lambda t: float((t.types == int(HeadType.SYNERGY)).sum()),
    "information of all heads": lambda t: float(np.nanmean(t.total)),
    "place in the answer": lambda t: -float(t.step),
}


def separations(tokens: Sequence[ObjectToken], resamples: int = 500, seed: int = 0) -> list[Separation]:
    """One row per value, with intervals from resampling images. The first value is also evaluated on first mentions
    only, because repeated names can be copied from the text."""
    fresh = [token for token in tokens if token.first]
    name, value = next(iter(VALUES.items()))
    rows = [separation(name, value, tokens, resamples, seed) for name, value in VALUES.items()]
    return [rows[0], separation(f"{name}, first mentions", value, fresh, resamples, seed), *rows[1:]]


def separation(
    name: str, value: Callable[[ObjectToken], float], tokens: Sequence[ObjectToken], resamples: int, seed: int
) -> Separation:
    found = compare(
        Labelled.of(
            [value(t) for t in tokens],
            [t.correct for t in tokens],
            [t.picture for t in tokens],
            [t.step for t in tokens],
        ),
        seed,
        resamples,
    )
    return Separation(
        name,
        found.correct,
        found.hallucinated,
        found.mean_correct.value,
        found.mean_hallucinated.value,
        found.auc.value,
        found.auc.low,
        found.auc.high,
        found.matched_auc.value,
    )
