"""The equilibrium of a model: the visual share of its heads at correct tokens."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from heal import strict_json
from heal.analysis.taxonomy import HeadType
from heal.atomic_write import atomic_write
from heal.engine.transformers_api import checkpoint_name
from heal.errors import ConfigError, shortened

FILE = "equilibrium.json"
"""File name in the checkpoint folder."""
FEWEST = 20
"""Minimum number of tokens at which a head must be mixed to get a median of its own."""


LARGEST = 15.0
"""A larger logit is a share of 0 or 1 in single precision, which no mixed head has."""


def _logit(value: Any) -> float:
    """A number, or NaN for null."""
    if value is None:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{shortened(repr(value), 40)} is not a number")
    return float(value)


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """Median logit(α_vis) of every head at correct tokens (NaN if the head was rarely mixed), and the mean share."""

    mean: float
    """Mean α_vis of the synergy heads."""
    logits: Float32[np.ndarray, "layer head"]
    counts: Int64[np.ndarray, "layer head"]
    source: dict[str, Any] = field(default_factory=dict)
    """How it was measured: model, data, tokens, options."""

    @classmethod
    def of(
        cls,
        alpha_vis: Float32[np.ndarray, "token layer head"],
        types: UInt8[np.ndarray, "token layer head"],
        source: dict[str, Any] | None = None,
    ) -> Equilibrium:
        """From α_vis at tokens that are known to be correct (NaN: not mixed)."""
        mixed = ~np.isnan(alpha_vis)
        synergy = mixed & (types == int(HeadType.SYNERGY))
        if not synergy.any():
            raise ConfigError("no synergy head was found at a correct token: use more images or longer answers")
        share = alpha_vis.astype(np.float64)
        logit = np.log(share) - np.log1p(-share)
        counts = mixed.sum(0)
        logits = np.full(counts.shape, np.nan, np.float32)
        for layer, head in zip(*np.nonzero(counts >= FEWEST), strict=True):
            logits[layer, head] = np.median(logit[mixed[:, layer, head], layer, head])
        return cls(float(share[synergy].mean()), logits, counts, source or {})

    def targets(self, delta: float = 0.0) -> Float32[np.ndarray, "layer head"]:
        """α of every head: its median shifted by δ in logits, or the mean for a head without a median."""
        logits = np.where(np.isnan(self.logits), np.log(self.mean / (1 - self.mean)), self.logits)
        return (1 / (1 + np.exp(-(logits + delta)))).astype(np.float32)

    def save(self, path: str | os.PathLike[str]) -> None:
        record = {
            "mean": self.mean,
            "logits": [[None if np.isnan(x) else round(float(x), 5) for x in row] for row in self.logits],
            "counts": self.counts.tolist(),
            "source": self.source,
        }
        atomic_write(path, json.dumps(record) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Equilibrium:
        if not os.path.lexists(path):
            raise ConfigError(f"there is no equilibrium at {path}: create one with `heal calibrate`")
        try:
            record = strict_json.read(Path(path), ConfigError)
            logits = np.array([[_logit(x) for x in row] for row in record["logits"]], np.float32)
            counts, source = np.array(record["counts"], np.int64), record["source"]
            if logits.ndim != 2 or counts.shape != logits.shape or not isinstance(source, dict):
                raise TypeError("the shapes of logits and counts do not match")
            found = cls(float(record["mean"]), logits, counts, source)
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ConfigError(f"{path} is not an equilibrium written by `heal calibrate`: {error}") from error
        if (np.abs(logits) > LARGEST).any() or (counts < 0).any() or not 0 < found.mean < 1:
            raise ConfigError(f"{path} is a damaged equilibrium: values are out of range")
        return found

    @classmethod
    def of_model(cls, model: Any) -> Equilibrium:
        """The equilibrium in the model's checkpoint folder."""
        folder = checkpoint_name(model)
        if not folder or not (Path(folder) / FILE).is_file():
            raise ConfigError(
                "this model has no equilibrium of its own: create one with `heal calibrate --model … --out FILE` and "
                "pass it as profile=FILE, or give alpha as a number"
            )
        return cls.load(Path(folder) / FILE)
