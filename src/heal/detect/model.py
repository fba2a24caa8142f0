"""A fitted detector: logistic regression on the features of a token, calibrated, and stored as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from heal import strict_json
from heal.atomic_write import atomic_write
from heal.detect.calibration import Link, link_from
from heal.detect.features import FAMILIES, Columns, Features, named, names_of
from heal.engine.transformers_api import checkpoint_name
from heal.errors import ConfigError

FILE = "detector.json"
"""File name in the checkpoint folder."""
FORMAT = 1
MOST_HEADS = 2**16
"""Heads of all layers. A damaged file must not make names for more."""
LARGEST = 1e6
"""No weight, mean or scale of a fitted detector is larger."""


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Weights of standardised features, and the link from the weighted sum to a probability."""

    columns: tuple[Columns, ...]
    mean: Float[np.ndarray, " column"]
    scale: Float[np.ndarray, " column"]
    weights: Float[np.ndarray, " column"]
    bias: float
    link: Link

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(own.family for own in self.columns)

    def usable(self, features: Features) -> np.ndarray:
        """[step] whether something of every family was measured."""
        found = [~np.isnan(features.values[own.family][:, list(own.at)]).all(axis=1) for own in self.columns]
        return np.logical_and.reduce(found)

    def terms(self, features: Features) -> np.ndarray:
        """[step, column] the contribution of each feature to the weighted sum. A missing feature contributes 0."""
        standard = (features.matrix(self.columns).astype(np.float64) - self.mean) / self.scale
        return np.nan_to_num(standard, nan=0.0) * self.weights

    def scores(self, features: Features) -> np.ndarray:
        return self.terms(features).sum(axis=1) + self.bias

    def probability(self, features: Features) -> np.ndarray:
        return self.link.probability(self.scores(features))


@dataclass(frozen=True, eq=False)
class Detector:
    """The probability that an object word is hallucinated, from the features of its first token.

    It has several models with fewer and fewer features. Each token gets the first one whose features were measured:
    methods other than HEAL measure no heads.
    """

    models: Mapping[str, LinearModel]
    """By name, the one with the most features first."""
    layers: int
    heads: int
    words: str = "coco"
    """The words that count as objects: coco, world, or the path of a table of synonyms."""
    threshold: float = 0.5
    """Object words with at least this risk are doubtful."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of HEAL that measured the heads."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """How it was fitted: model, data, number of words, seed, versions."""
    baselines: Mapping[str, LinearModel] = field(default_factory=dict)
    """Models of other features that were fitted to the same words, for comparison."""

    def risk(self, features: Features) -> Float[np.ndarray, " step"]:
        """The risk of an object word at each token. NaN if not even its probability is known."""
        self.check(features.layers, features.heads)
        risk = np.full(features.steps, np.nan)
        for model in self.models.values():
            open_steps = np.isnan(risk) & model.usable(features)
            if open_steps.any():
                risk[open_steps] = model.probability(features)[open_steps]
        return risk

    def contributions(self, features: Features, step: int) -> list[tuple[str, float]]:
        """(family, contribution to the log-odds) at one token, the largest first."""
        one = Features(
            {name: own[step : step + 1] for name, own in features.values.items()}, features.layers, features.heads
        )
        model = next((m for m in self.models.values() if bool(m.usable(one)[0])), None)
        if model is None:
            return []
        edges = np.cumsum([len(own.at) for own in model.columns])[:-1]
        sums = [float(part.sum()) * model.link.slope for part in np.split(model.terms(one)[0], edges)]
        return sorted(zip(model.families, sums, strict=True), key=lambda pair: -abs(pair[1]))

    @property
    def families(self) -> tuple[str, ...]:
        """All families that some model uses."""
        return tuple(name for name in FAMILIES if any(name in model.families for model in self.models.values()))

    def check(self, layers: int, heads: int) -> None:
        if (layers, heads) != (self.layers, self.heads):
            raise ConfigError(
                f"the detector is for a model with {self.layers} layers of {self.heads} heads, but this model has "
                f"{layers} of {heads}: make one for this model with `heal detect fit`"
            )

    # ── the file ──────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str]) -> None:
        record = {
            "heal_detector": FORMAT,
            "layers": self.layers,
            "heads": self.heads,
            "words": self.words,
            "threshold": self.threshold,
            "options": dict(self.options),
            "source": dict(self.source),
            "models": {name: _record(own, self.layers, self.heads) for name, own in self.models.items()},
            "baselines": {name: _record(own, self.layers, self.heads) for name, own in self.baselines.items()},
        }
        atomic_write(path, json.dumps(record) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Detector:
        if not os.path.lexists(path):
            raise ConfigError(f"there is no detector at {path}: make one with `heal detect fit`")
        record = strict_json.read(Path(path), ConfigError)
        try:
            return _detector(record)
        except KeyError as error:
            raise ConfigError(
                f"{path} is not a detector written by this version's `heal detect fit`: it has no {error}"
            ) from error
        except (ValueError, TypeError, OverflowError, AttributeError) as error:
            raise ConfigError(f"{path} is not a detector written by `heal detect fit`: {error}") from error

    @classmethod
    def of_model(cls, model: Any) -> Detector:
        """The detector in the model's checkpoint folder."""
        folder = checkpoint_name(model)
        if not folder or not (Path(folder) / FILE).is_file():
            raise ConfigError(
                "this model has no detector: make one with `heal detect fit --model … --out detector.json` and give "
                "its path, for example risk='detector.json'"
            )
        return cls.load(Path(folder) / FILE)


def as_detector(given: Any, model: Any) -> Detector | None:
    """The detector that `risk` asks for: True is the model's own, a path is loaded, None and False are none."""
    if given is None or given is False:
        return None
    if given is True:
        return Detector.of_model(model)
    if isinstance(given, Detector):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Detector.load(given)
    raise ConfigError(f"risk must be True, False, a Detector or the path of one, not {type(given).__name__}")


def _record(model: LinearModel, layers: int, heads: int) -> dict[str, Any]:
    return {
        "names": names_of(model.columns, layers, heads),
        "mean": _rounded(model.mean),
        "scale": _rounded(model.scale),
        "weights": _rounded(model.weights),
        "bias": model.bias,
        "link": model.link.record(),
    }


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _detector(record: Any) -> Detector:
    if not isinstance(record, dict) or record.get("heal_detector") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    layers, heads = _count(record["layers"]), _count(record["heads"])
    if layers * heads > MOST_HEADS:
        raise ValueError(f"no model has {layers} layers of {heads} heads")
    models = {str(name): _model(told, layers, heads) for name, told in record["models"].items()}
    if not models:
        raise ValueError("it has no models")
    threshold = record["threshold"]
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
        raise ValueError(f"the threshold must lie between 0 and 1, not {threshold!r}")
    words, options, source = record["words"], record["options"], record["source"]
    if not isinstance(words, str) or not isinstance(options, dict) or not isinstance(source, dict):
        raise TypeError("words must be a string, options and source objects")
    baselines = {str(name): _model(told, layers, heads) for name, told in record["baselines"].items()}
    return Detector(models, layers, heads, words, float(threshold), options, source, baselines)


def _model(told: Mapping[str, Any], layers: int, heads: int) -> LinearModel:
    names = list(told["names"])
    columns = named(names, layers, heads)
    mean, scale, weights = (_numbers(told[name], len(names), name) for name in ("mean", "scale", "weights"))
    if (scale <= 0).any():
        raise ValueError("a scale is not positive")
    bias = _numbers([told["bias"]], 1, "bias")[0]
    return LinearModel(columns, mean, scale, weights, float(bias), link_from(told["link"]))


def _numbers(values: Sequence[Any], count: int, what: str) -> np.ndarray:
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        raise TypeError(f"{what} must be numbers")
    found = np.array(values, np.float64)
    if found.shape != (count,):
        raise ValueError(f"{what} must have {count} numbers, not {len(found)}")
    if not (np.abs(found) <= LARGEST).all():
        raise ValueError(f"{what} has a number that is out of range")
    return found


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"layers and heads must be positive integers, not {value!r}")
    return value
