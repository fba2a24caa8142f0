"""Judge a detector on labelled words that it was not fitted to, against baselines on the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heal.bench.score.bootstrap import Interval, percentile_interval, resampling_weights
from heal.detect.labels import Labelled
from heal.detect.model import Detector
from heal.detect.ranking import auroc, weighted_auroc, weighted_brier, weighted_precision

RESAMPLES = 1000
BINS = 10
FEWEST = 20
"""Minimum number of words of either kind for figures with intervals."""
DETECTOR = "detector"
GAINS = (
    (DETECTOR, "log-probability"),
    (DETECTOR, "log-probability, position, first mention"),
    ("these and α_vis of every head", "log-probability, position, first mention"),
    (DETECTOR, "without heads"),
    (DETECTOR, "without visual share and information"),
    (DETECTOR, "without hidden states"),
)
"""Pairs whose difference is reported: the first minus the second."""
Measure = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
MEASURES: dict[str, Measure] = {"auroc": weighted_auroc, "auprc": weighted_precision, "brier": weighted_brier}


@dataclass(frozen=True)
class Figures:
    """The figures of one score on some words."""

    name: str
    words: int
    hallucinated: int
    auroc: Interval
    auprc: Interval
    brier: Interval


@dataclass(frozen=True)
class Gain:
    """The AUROC of one score minus that of another, on the same resamples."""

    name: str
    over: str
    auroc: Interval


@dataclass(frozen=True)
class Bin:
    """Words of similar risk: their mean risk, and the share of hallucinated ones."""

    risk: float
    share: Interval
    words: int


@dataclass(frozen=True)
class Verdict:
    """Everything about one set of words."""

    kind: str
    """natural, counter, or the name of the images."""
    mentions: str
    """all or first."""
    figures: tuple[Figures, ...]
    gains: tuple[Gain, ...]
    reliability: tuple[Bin, ...]
    too_few: str = ""
    """Why there are no figures."""


def scores_of(detector: Detector, labelled: Labelled) -> dict[str, np.ndarray]:
    """The probability of each word by the detector and by every baseline."""
    found = {DETECTOR: detector.risk(labelled.features)}
    simpler = dict(list(detector.models.items())[1:])
    for name, model in {**detector.baselines, **simpler}.items():
        if bool(model.usable(labelled.features).any()):
            found[name] = model.probability(labelled.features)
    return found


def verdicts(
    detector: Detector, labelled: Mapping[str, Labelled], seed: int = 0, resamples: int = RESAMPLES
) -> list[Verdict]:
    """All mentions and first mentions of each kind of images."""
    found = []
    for kind, words in labelled.items():
        for mentions, chosen in (("all", words), ("first", words.select(np.flatnonzero(words.first)))):
            found.append(verdict(detector, chosen, kind, mentions, seed, resamples))
    return found


def verdict(
    detector: Detector, labelled: Labelled, kind: str, mentions: str, seed: int = 0, resamples: int = RESAMPLES
) -> Verdict:
    bad = int(labelled.hallucinated.sum())
    if min(bad, len(labelled) - bad) < FEWEST:
        few = f"{len(labelled) - bad} correct and {bad} hallucinated words: too few for an interval"
        return Verdict(kind, mentions, (), (), (), few)
    scores = scores_of(detector, labelled)
    blocks = list(_weights(labelled, seed, resamples))
    figures, resampled = [], {}
    for name, own in scores.items():
        intervals = {}
        for measure, function in MEASURES.items():
            here = float(function(own, labelled.hallucinated, np.ones((1, len(own))))[0])
            values = np.concatenate([function(own, labelled.hallucinated, block) for block in blocks])
            intervals[measure] = Interval(here, *percentile_interval(values))
            if measure == "auroc":
                resampled[name] = here, values
        figures.append(Figures(name, len(labelled), bad, **intervals))
    gains = [_gain(one, other, resampled) for one, other in GAINS if one in resampled and other in resampled]
    return Verdict(kind, mentions, tuple(figures), tuple(gains), reliability(scores[DETECTOR], labelled, blocks))


def _gain(one: str, other: str, resampled: Mapping[str, tuple[float, np.ndarray]]) -> Gain:
    (here, values), (there, others) = resampled[one], resampled[other]
    return Gain(one, other, Interval(here - there, *percentile_interval(values - others)))


def _weights(labelled: Labelled, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """How often each word counts in each resample of the images."""
    _, unit = np.unique(labelled.picture, return_inverse=True)
    for block in resampling_weights(int(unit.max()) + 1, seed, resamples):
        yield block[:, unit]


def reliability(risk: np.ndarray, labelled: Labelled, blocks: Sequence[np.ndarray]) -> tuple[Bin, ...]:
    """Words in bins with as many words each, from the lowest risk to the highest."""
    order = np.argsort(risk, kind="stable")
    found = []
    for part in np.array_split(order, BINS):
        bad = labelled.hallucinated[part]
        shares = np.concatenate([_share(block[:, part], bad) for block in blocks])
        interval = Interval(float(bad.mean()), *percentile_interval(shares))
        found.append(Bin(float(risk[part].mean()), interval, len(part)))
    return tuple(found)


def _share(weights: np.ndarray, bad: np.ndarray) -> np.ndarray:
    total = weights.sum(1)
    return np.divide(weights @ bad, total, out=np.full(len(weights), np.nan), where=total > 0)


def calibration_error(bins: Sequence[Bin]) -> float:
    """The mean distance of risk and share of hallucinated words over the bins, weighted by their words."""
    words = sum(own.words for own in bins)
    return sum(own.words * abs(own.risk - own.share.value) for own in bins) / words


def learning_curve(
    training: Labelled, judged: Mapping[str, Labelled], sizes: Sequence[int], repeats: int = 5, seed: int = 0
) -> dict[str, dict[int, list[float]]]:
    """AUROC of detectors fitted to fewer captions, by kind and number of captions.

    Each is fitted to the words of a random choice of images. Sizes with too few words are left out.
    """
    from heal.detect.features import whole
    from heal.detect.fitting import LEVELS, fit_model

    rng, pictures = np.random.default_rng(seed), np.unique(training.picture)
    columns = whole(next(iter(LEVELS.values())), training.features.layers, training.features.heads)
    found: dict[str, dict[int, list[float]]] = {kind: {} for kind in judged}
    for size in sizes:
        for _ in range(repeats if size < len(pictures) else 1):
            chosen = training.of_pictures(rng.permutation(pictures)[:size])
            bad = int(chosen.hallucinated.sum())
            if min(bad, len(chosen) - bad) < FEWEST:
                continue
            model = fit_model(chosen, columns, seed).model
            for kind, words in judged.items():
                value = auroc(model.scores(words.features), words.hallucinated)
                found[kind].setdefault(size, []).append(value)
    return found
