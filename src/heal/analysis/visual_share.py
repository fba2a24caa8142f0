"""The visual share of mixed heads at the tokens of an answer, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, UInt8

from heal.analysis.taxonomy import HeadType


def visual_share(
    visual: Float32[np.ndarray, "step layer head"], language: Float32[np.ndarray, "step layer head"]
) -> Float32[np.ndarray, "step layer head"]:
    """The visual share of mixed heads. NaN if one of the scores is not positive or was not measured."""
    mixed = (visual > 0) & (language > 0)
    return np.divide(visual, visual + language, out=np.full_like(visual, np.nan), where=mixed)


def mean_share(
    share: Float32[np.ndarray, "step layer head"],
    types: UInt8[np.ndarray, "step layer head"],
    wanted: Sequence[int] = (HeadType.SYNERGY,),
) -> Float32[np.ndarray, " step"]:
    """The mean share per step over the heads of these types. NaN if there are none."""
    counted = np.isin(types, wanted) & ~np.isnan(share)
    total = np.where(counted, share, 0).sum((1, 2))
    number = counted.sum((1, 2))
    return np.divide(total, number, out=np.full(len(share), np.nan, np.float32), where=number > 0)
