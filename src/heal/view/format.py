"""The name and version of the data format, and its compact arrays."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

FORMAT = "heal-view"
VERSION = 1
"""Increased when a page of an older version could misread the data."""

DIGITS = 5
FINE, COARSE = 16, 8
"""Bits per value of an array over steps and heads."""


def head(kind: str, title: str) -> dict[str, Any]:
    """The first fields of every data object."""
    return {"format": FORMAT, "version": VERSION, "kind": kind, "title": title}


def number(value: float) -> float | None:
    """A number with five significant digits; None for NaN and infinity, which JSON lacks."""
    value = float(value)
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def numbers(values: Iterable[float] | None) -> list[float | None] | None:
    """One number per step; None if there are none, or none is known."""
    found = [] if values is None else [number(value) for value in values]
    return found if any(value is not None for value in found) else None


def packed_types(types: np.ndarray) -> dict[str, Any]:
    """Head types of each step, [step, layer, head]. Steps that repeat the one before are left out."""
    first = _changes(types)
    return {"steps": first, "data": _base64(types[first].astype("u1"))}


def packed_scores(scores: np.ndarray, bits: int, hold: bool = False) -> dict[str, Any] | None:
    """Scores [step, layer, head] as levels between the lowest and the highest value of each head.

    None if all are NaN. A value differs from the original by at most half a level: with 8 bits 1/506 of the range of
    its head. Steps that repeat the one before are left out. `hold`: a step without any value repeats the one before.
    """
    known = np.isfinite(scores)
    if not known.any():
        return None
    if hold:
        first = np.flatnonzero(known.any((1, 2)) | (np.arange(len(scores)) == 0))
        first = first[[0, *(1 + _changed(scores[first]))]]
    else:
        first = np.array(_changes(scores))
    scores, known = scores[first].astype(np.float64), known[first]
    low = np.where(known, scores, np.inf).min(0)
    high = np.where(known, scores, -np.inf).max(0)
    low, high = (np.where(np.isfinite(end), end, 0.0).astype(np.float32) for end in (low, high))
    missing = 2**bits - 1
    unit = ((high.astype(np.float64) - low) / (missing - 1)).astype(np.float32)
    safe = np.where(unit > 0, unit, 1)
    levels = np.where(known, np.clip(np.round((np.where(known, scores, 0) - low) / safe), 0, missing - 1), missing)
    return {
        "steps": first.tolist(),
        "bits": bits,
        "low": _base64(low.astype("<f4")),
        "unit": _base64(unit.astype("<f4")),
        "data": _base64(levels.astype(f"<u{bits // 8}")),
    }


def unpacked_scores(packed: dict[str, Any], shape: tuple[int, int, int]) -> np.ndarray:
    """What the page reads from packed scores."""
    layers, heads = shape[1:]
    low, unit = (_array(packed[name], "<f4").reshape(layers, heads) for name in ("low", "unit"))
    levels = _array(packed["data"], f"<u{packed['bits'] // 8}").reshape(-1, layers, heads)
    values = np.where(levels == 2 ** packed["bits"] - 1, np.nan, low + levels.astype(np.float32) * unit)
    return values[np.searchsorted(packed["steps"], np.arange(shape[0]), side="right") - 1]


def utf16(text: str, at: int) -> int:
    """The position in UTF-16 code units, which JavaScript counts."""
    return len(text[:at].encode("utf-16-le", "surrogatepass")) // 2


def _changes(array: np.ndarray) -> list[int]:
    """The first step, and each step that differs from the one before. NaN equals NaN."""
    return [0, *(1 + _changed(array)).tolist()] if len(array) else []


def _changed(array: np.ndarray) -> np.ndarray:
    now, before = array[1:], array[:-1]
    same = now == before
    if array.dtype.kind == "f":
        same |= np.isnan(now) & np.isnan(before)
    return np.flatnonzero(~same.reshape(len(now), -1).all(1)) if len(now) else np.array([], np.int64)


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)
