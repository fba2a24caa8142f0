"""Features of every token of an answer, from what was measured up to it.

Features of a token depend on this and earlier tokens and on the object words up to the one that starts there, so that
they are the same while the answer is still being generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from heal.analysis.depths import DEPTHS, SUMMARIES
from heal.detect.words import Word

LEAST = 1e-4
"""Added to the information of a head, so that the visual share of a head without any is 0."""
LEAST_ATTENTION = 1e-3
SYNERGY = 4
KINDS = (1, 2, 3, SYNERGY)
"""Head types that are counted: information redundant, visual, language, synergy."""
MIDDLE = (5 / 32, 18 / 32)
"""The middle layers, as a share of all layers: layers 5 to 18 of 32 in work on the visual attention ratio (SVAR)."""
MOST = 3
"""Up to this many earlier mentions of the same object are told apart."""


@runtime_checkable
class Measurements(Protocol):
    """The fields of a `Trace` or of `Measured` that features are computed from."""

    @property
    def visual(self) -> np.ndarray: ...
    @property
    def language(self) -> np.ndarray: ...
    @property
    def total(self) -> np.ndarray: ...
    @property
    def types(self) -> np.ndarray: ...
    @property
    def visual_attention(self) -> np.ndarray: ...
    @property
    def similarity(self) -> np.ndarray: ...
    @property
    def agreement(self) -> np.ndarray: ...
    @property
    def logprobs(self) -> np.ndarray: ...
    @property
    def entropy(self) -> np.ndarray: ...
    @property
    def margin(self) -> np.ndarray: ...


Values = Float32[np.ndarray, "step column"]
Names = Callable[[int, int], list[str]]


@dataclass(frozen=True)
class Family:
    """Features that are computed, left out and explained together."""

    name: str
    subject: str
    """What they are about, in an explanation."""
    names: Names
    """The names of the columns, for a number of layers and of heads per layer."""
    values: Callable[[Measurements, Sequence[Word]], np.ndarray]
    """The columns at every token. NaN where something was not measured."""


@dataclass(frozen=True)
class Columns:
    """Some of the columns of a family."""

    family: str
    at: tuple[int, ...]

    def names(self, layers: int, heads: int) -> list[str]:
        every = FAMILIES[self.family].names(layers, heads)
        return [every[index] for index in self.at]


@dataclass(frozen=True, eq=False)
class Features:
    """Features of every token by family, each [step, column]."""

    values: dict[str, np.ndarray]
    layers: int
    heads: int

    @property
    def steps(self) -> int:
        return next(iter(self.values.values())).shape[0]

    def matrix(self, columns: Sequence[Columns]) -> Values:
        return np.concatenate([self.values[own.family][:, list(own.at)] for own in columns], axis=1)


def features(measured: Measurements, words: Sequence[Word], families: Sequence[str] | None = None) -> Features:
    """The features of every token. `words`: the object words of the answer, in order (see `object_words`)."""
    wanted = FAMILIES if families is None else {name: FAMILIES[name] for name in families}
    _, layers, heads = measured.visual.shape
    found = {name: np.asarray(own.values(measured, words), np.float32) for name, own in wanted.items()}
    return Features(found, layers, heads)


def whole(families: Sequence[str], layers: int, heads: int) -> tuple[Columns, ...]:
    """All columns of these families."""
    return tuple(Columns(name, tuple(range(len(FAMILIES[name].names(layers, heads))))) for name in families)


def named(names: Sequence[str], layers: int, heads: int) -> tuple[Columns, ...]:
    """Columns by name, which must be grouped by family."""
    places = {
        name: (family, index)
        for family, own in FAMILIES.items()
        for index, name in enumerate(own.names(layers, heads))
    }
    if unknown := [name for name in names if name not in places]:
        raise ValueError(f"there is no feature {unknown[0]!r}")
    groups = groupby((places[name] for name in names), key=lambda place: place[0])
    return tuple(Columns(family, tuple(index for _, index in own)) for family, own in groups)


def names_of(columns: Sequence[Columns], layers: int, heads: int) -> list[str]:
    """The names of the columns of `Features.matrix`."""
    return [name for own in columns for name in own.names(layers, heads)]


# ── the distribution and the place of a token ─────────────────────────────────────────────────────────────


def _distribution(measured: Measurements) -> np.ndarray:
    return np.stack([measured.logprobs, measured.entropy, measured.margin], axis=1)


def _probability(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    return _distribution(measured)


def _position(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    step = np.arange(len(measured.logprobs))
    starts = np.array([word.start for word in words], int)
    firsts = np.array([word.start for word, before in zip(words, _earlier(words), strict=True) if not before], int)
    before = [np.searchsorted(np.sort(some), step, side="left") for some in (starts, firsts)]
    return np.stack([step, np.log1p(step), *before], axis=1)


def _earlier(words: Sequence[Word]) -> list[list[int]]:
    """For each object word, the first tokens of the earlier mentions of the same object."""
    known: dict[str, list[int]] = {}
    found = []
    for word in words:
        found.append(list(known.get(word.category, ())))
        known.setdefault(word.category, []).append(word.start)
    return found


def _mention(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    """Whether the object is new, its earlier mentions, and the distribution and place of a new one by themselves."""
    step = np.arange(len(measured.logprobs))
    distribution = _distribution(measured)
    new = np.concatenate([distribution, step[:, None], np.log1p(step)[:, None]], axis=1)
    history = np.zeros((len(step), 2 + 3 * 2))
    history[:, 0] = 1
    for word, earlier in zip(words, _earlier(words), strict=True):
        if earlier and word.start < len(step):
            own = distribution[earlier][:, [0, 2]]
            summary = np.concatenate([own[0], own.mean(0), own.min(0)])
            history[word.start] = [0, min(len(earlier), MOST), *summary]
    return np.concatenate([history, new * history[:, :1]], axis=1)


# ── heads ─────────────────────────────────────────────────────────────────────────────────────────────────


def _flat(heads: np.ndarray) -> np.ndarray:
    return heads.reshape(len(heads), int(np.prod(heads.shape[1:])))


def _share(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    """(I_vis − I_lang) / (|I_vis| + |I_lang|): −1 for a language head, 1 for a visual one."""
    visual, language = _flat(measured.visual), _flat(measured.language)
    return (visual - language) / (np.abs(visual) + np.abs(language) + LEAST)


def _information(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    return np.log(np.maximum(_flat(measured.total), LEAST))


def _attention(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    return np.log(np.maximum(_flat(measured.visual_attention), LEAST_ATTENTION))


def _summary(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    """The mean α_vis of synergy heads, its drift from the running mean, the share of heads of each type, and the
    attention to the image in the middle layers."""
    visual, language, types = _flat(measured.visual), _flat(measured.language), _flat(measured.types)
    mixed = (types == SYNERGY) & (visual > 0) & (language > 0)
    whole = np.where(mixed, visual + language, 1.0)
    share, number = np.where(mixed, visual / whole, 0.0).sum(1), mixed.sum(1)
    mean = np.divide(share, number, out=np.full(len(share), np.nan), where=number > 0)
    known = ~np.isnan(mean)
    so_far = np.cumsum(np.where(known, mean, 0.0)) / np.maximum(np.cumsum(known), 1)
    counts = np.stack([(types == kind).mean(1) for kind in KINDS], axis=1)
    counts[np.isnan(visual).all(1)] = np.nan
    _, layers, _ = measured.visual_attention.shape
    middle = slice(int(MIDDLE[0] * layers), max(int(MIDDLE[1] * layers), 1))
    attention = measured.visual_attention[:, middle].mean((1, 2))
    return np.concatenate([np.stack([mean, mean - so_far], axis=1), counts, attention[:, None]], axis=1)


# ── hidden states ─────────────────────────────────────────────────────────────────────────────────────────


def _agreement(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    return _flat(measured.agreement)


def _similarity(measured: Measurements, words: Sequence[Word]) -> np.ndarray:
    return _flat(measured.similarity)


def _fixed(*names: str) -> Names:
    return lambda layers, heads: list(names)


def _each_head(what: str) -> Names:
    return lambda layers, heads: [f"{what} {layer}.{head}" for layer in range(layers) for head in range(heads)]


def _compared(what: str) -> Names:
    return lambda layers, heads: [f"{what} {depth} {summary}" for depth in DEPTHS for summary in SUMMARIES]


_EARLIER = [f"{what} {how} earlier" for how in ("first", "mean", "lowest") for what in ("logprob", "margin")]
_NEW = [f"{what} if new" for what in ("logprob", "entropy", "margin", "step", "log step")]

FAMILIES = {
    family.name: family
    for family in (
        Family("probability", "probability of the word", _fixed("logprob", "entropy", "margin"), _probability),
        Family(
            "position",
            "place in the answer",
            _fixed("step", "log step", "words before", "objects before"),
            _position,
        ),
        Family("mention", "earlier mentions", _fixed("new", "mentions before", *_EARLIER, *_NEW), _mention),
        Family("share", "visual share of the heads", _each_head("visual share"), _share),
        Family("information", "information of the heads", _each_head("information"), _information),
        Family("attention", "attention to the image", _each_head("visual attention"), _attention),
        Family(
            "summary",
            "drift and types of the heads",
            _fixed("α_vis", "drift", "information redundant", "visual", "language", "synergy", "middle attention"),
            _summary,
        ),
        Family("agreement", "similarity of the word to the image", _compared("agreement"), _agreement),
        Family("similarity", "similarity of the context to the image", _compared("similarity"), _similarity),
    )
}
"""All families, by name."""
TEXT = ("probability", "position", "mention")
"""Families that every method allows."""
HEADS = ("share", "information", "attention", "summary")
HIDDEN = ("agreement", "similarity")
