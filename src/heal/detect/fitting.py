"""Fit a detector: regularised logistic regression, its strength and calibration chosen on held-out images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heal.detect.calibration import Isotonic, Link, Platt
from heal.detect.features import HEADS, HIDDEN, TEXT, Columns, named, whole
from heal.detect.labels import Labelled
from heal.detect.model import Detector, LinearModel
from heal.detect.ranking import auroc
from heal.errors import DataError
from heal.extras import optional

with optional():
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

FEWEST = 20
"""Minimum number of correct and of hallucinated object words."""
FOLDS = 5
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse regularisation strengths that are compared."""
LEVELS: dict[str, tuple[str, ...]] = {
    "everything": (*TEXT, *HEADS, *HIDDEN),
    "without hidden states": (*TEXT, *HEADS),
    "text": TEXT,
}
"""The families of each model of a detector, most first: methods and models allow to measure more or less."""
PLACE = ("logprob", "step", "new")
BASELINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "log-probability": ((), ("logprob",)),
    "entropy": ((), ("entropy",)),
    "margin": ((), ("margin",)),
    "position": ((), ("step",)),
    "visual attention (SVAR)": ((), ("middle attention",)),
    "α_vis of synergy heads": ((), ("α_vis",)),
    "α_vis of every head": (("share",), ()),
    "visual attention of every head": (("attention",), ()),
    "log-probability, position, first mention": ((), PLACE),
    "these and α_vis of every head": (("share",), PLACE),
    "without heads": ((*TEXT, *HIDDEN), ()),
    "without visual share and information": ((*TEXT, "attention", *HIDDEN), ()),
}
"""Models to compare a detector with: their families, and the names of single features."""
BEST_OF = {"similarity of the hidden state (GLSim-like)": "similarity", "similarity of the word": "agreement"}
"""Baselines of one feature: the best one of a family on the words that they are fitted to."""
POINTS = 50
"""Maximum number of points of an isotonic curve."""


@dataclass(frozen=True)
class Standard:
    """Mean and scale of each column, without missing values."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Standard:
        known = ~np.isnan(values)
        count = np.maximum(known.sum(0), 1)
        mean = np.where(known, values, 0.0).sum(0) / count
        spread = np.sqrt((np.where(known, values - mean, 0.0) ** 2).sum(0) / count)
        return cls(mean, np.where(spread > 1e-9, spread, 1.0))

    def applied(self, values: np.ndarray) -> np.ndarray:
        return np.nan_to_num((values - self.mean) / self.scale, nan=0.0)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model with the regularisation that was chosen and its AUROC, both on held-out images."""

    model: LinearModel
    strength: float
    auroc: float


def fit(
    labelled: Labelled,
    levels: Mapping[str, Sequence[str]] = LEVELS,
    words: str = "coco",
    options: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
    threshold: float = 0.5,
    seed: int = 0,
) -> Detector:
    """A detector with one model for each level whose features were measured at all."""
    check_enough(labelled)
    shape = labelled.features
    usable = {name: own for name, own in levels.items() if _measured(labelled, own)}
    models = {name: fit_model(labelled, whole(own, shape.layers, shape.heads), seed) for name, own in usable.items()}
    others = {name: fit_model(labelled, columns, seed) for name, columns in baselines(labelled).items()}
    told = {"captions": labelled.captions, "words": len(labelled), "hallucinated": int(labelled.hallucinated.sum())}
    quality = {name: {"auroc": own.auroc, "strength": own.strength} for name, own in {**models, **others}.items()}
    return Detector(
        {name: own.model for name, own in models.items()},
        shape.layers,
        shape.heads,
        words,
        threshold,
        options or {},
        {**told, "seed": seed, **(source or {}), "cross-validation": quality},
        {name: own.model for name, own in others.items()},
    )


def check_enough(labelled: Labelled) -> None:
    """Too few words of either kind cannot be told apart."""
    bad = int(labelled.hallucinated.sum())
    good = len(labelled) - bad
    if min(good, bad) < FEWEST:
        raise DataError(
            f"the descriptions have {good} correct and {bad} hallucinated object words, but a detector needs at "
            f"least {FEWEST} of each: use more images"
        )
    if len(np.unique(labelled.picture)) < FOLDS:
        raise DataError(f"a detector needs at least {FOLDS} images that are described with object words")


def _measured(labelled: Labelled, level: Sequence[str]) -> bool:
    return all(not np.isnan(labelled.features.values[name]).all() for name in level)


def baselines(labelled: Labelled) -> dict[str, tuple[Columns, ...]]:
    """The features of each baseline, as far as they were measured."""
    shape = labelled.features
    found = {}
    for name, (families, names) in BASELINES.items():
        columns = (*named(names, shape.layers, shape.heads), *whole(families, shape.layers, shape.heads))
        if all(not np.isnan(shape.values[own.family]).all() for own in columns):
            found[name] = columns
    for name, family in BEST_OF.items():
        values = shape.values[family]
        if not np.isnan(values).all():
            found[name] = (Columns(family, (best_column(values, labelled.hallucinated),)),)
    return found


def best_column(values: np.ndarray, hallucinated: np.ndarray) -> int:
    """The column that tells hallucinated words from others best by itself."""
    ranks = [abs(auroc(column, hallucinated) - 0.5) for column in np.nan_to_num(values).T]
    return int(np.argmax(ranks))


def fit_model(
    labelled: Labelled, columns: Sequence[Columns], seed: int = 0, strengths: Sequence[float] = STRENGTHS
) -> Fitted:
    """Logistic regression of the words on these features."""
    values = labelled.features.matrix(columns).astype(np.float64)
    scores = {strength: held_out(labelled, values, strength, seed) for strength in strengths}
    losses = {strength: log_loss(sigmoid(own), labelled.hallucinated) for strength, own in scores.items()}
    best = min(losses, key=losses.__getitem__)
    standard = Standard.of(values)
    weights, bias = regression(standard.applied(values), labelled.hallucinated, best)
    link = calibration(scores[best], labelled.hallucinated, labelled.picture, seed)
    model = LinearModel(tuple(columns), standard.mean, standard.scale, weights, bias, link)
    return Fitted(model, best, auroc(scores[best], labelled.hallucinated))


def held_out(labelled: Labelled, values: np.ndarray, strength: float, seed: int = 0) -> np.ndarray:
    """The score of each word by a regression that has not seen its image."""
    found = np.full(len(labelled), np.nan)
    for train, test in folds(labelled.picture, seed):
        standard = Standard.of(values[train])
        weights, bias = regression(standard.applied(values[train]), labelled.hallucinated[train], strength)
        found[test] = standard.applied(values[test]) @ weights + bias
    return found


def folds(pictures: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test words. All words of an image are on one side."""
    splitter = GroupKFold(FOLDS, shuffle=True, random_state=seed)
    return list(splitter.split(pictures, groups=pictures))


def regression(values: np.ndarray, hallucinated: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    """Weights and bias of an L2-regularised logistic regression."""
    model = LogisticRegression(C=strength, max_iter=500).fit(values, hallucinated)
    if len(model.classes_) < 2:
        raise DataError("all object words of a fold have the same label: use more images")
    return model.coef_[0].astype(np.float64), float(model.intercept_[0])


# ── calibration ───────────────────────────────────────────────────────────────────────────────────────────


def calibration(scores: np.ndarray, hallucinated: np.ndarray, pictures: np.ndarray, seed: int = 0) -> Link:
    """The logistic link, unless an isotonic curve is better on held-out images by more than chance.

    `scores` come from regressions that have not seen their images.
    """
    curves = {
        "platt": np.full(len(scores), np.nan),
        "isotonic": np.full(len(scores), np.nan),
    }
    for train, test in folds(pictures, seed + 1):
        curves["platt"][test] = platt(scores[train], hallucinated[train]).probability(scores[test])
        curves["isotonic"][test] = isotonic(scores[train], hallucinated[train]).probability(scores[test])
    gain = losses_of(curves["platt"], hallucinated) - losses_of(curves["isotonic"], hallucinated)
    sums = np.bincount(np.unique(pictures, return_inverse=True)[1], gain)
    clearly = sums.sum() > 2 * sums.std() * np.sqrt(len(sums))
    return isotonic(scores, hallucinated) if clearly else platt(scores, hallucinated)


def platt(scores: np.ndarray, hallucinated: np.ndarray) -> Platt:
    weights, bias = regression(scores[:, None], hallucinated, 1e6)
    return Platt(max(float(weights[0]), 0.0), bias)


def isotonic(scores: np.ndarray, hallucinated: np.ndarray) -> Isotonic:
    """A curve through at most POINTS points."""
    model = IsotonicRegression(y_min=0, y_max=1).fit(scores, hallucinated)
    x, y = model.X_thresholds_, model.y_thresholds_
    at = np.unique(np.linspace(0, len(x) - 1, min(POINTS, len(x))).round().astype(int))
    points = dict(zip(x[at].tolist(), y[at].tolist(), strict=True))
    return Isotonic(tuple(points), tuple(points.values()))


def sigmoid(scores: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(scores, -50, 50)))


def losses_of(probability: np.ndarray, hallucinated: np.ndarray) -> np.ndarray:
    """The log loss of each word."""
    known = np.clip(probability, 1e-12, 1 - 1e-12)
    return -np.where(hallucinated, np.log(known), np.log1p(-known))


def log_loss(probability: np.ndarray, hallucinated: np.ndarray) -> float:
    return float(losses_of(probability, hallucinated).mean())
