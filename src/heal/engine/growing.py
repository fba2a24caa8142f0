"""Positions that grow by one per token. The usual group is filled in ahead, so that most tokens launch nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from heal.analysis.split import LANGUAGE, UNATTENDED, Regions, grown_spans

SPARE = 128
"""Number of positions that are filled in ahead."""


class Growing:
    """`values` [rows, …, length] is the front of a longer tensor. It is never changed in place."""

    def __init__(self, values: Tensor, usual: Tensor) -> None:
        """`usual` [rows or 1, …, 1]: what most new positions have."""
        self._filled = values
        self._usual = usual.expand(*values.shape[:-1], SPARE)
        self.length = values.shape[-1]

    @property
    def values(self) -> Tensor:
        return self._filled[..., : self.length]

    def add(self, column: Tensor | None = None) -> Tensor:
        """The values with one more position. `column` [rows, …, 1]; None: the usual one."""
        if column is not None:
            self._filled = torch.cat([self.values, column, self._usual], dim=-1)
        elif self.length == self._filled.shape[-1]:
            self._filled = torch.cat([self._filled, self._usual], dim=-1)
        self.length += 1
        return self.values


def growing_groups(groups: Tensor) -> Growing:
    """Of [rows, positions] groups."""
    return Growing(groups, groups.new_full((1, 1), LANGUAGE))


def growing_masks(regions: Regions) -> Growing:
    masks = regions.masks
    names = torch.arange(regions.group_count, device=masks.device)
    return Growing(masks, (names == LANGUAGE)[None, :, None])


def usual(groups: Sequence[int]) -> bool:
    """Whether a new position is a language position in every row."""
    return all(group == LANGUAGE for group in groups)


def column_of(groups: Sequence[int], like: Tensor) -> Tensor | None:
    """[rows, 1] the groups of a new position; None if it is usual."""
    return None if usual(groups) else torch.tensor(groups, device=like.device, dtype=like.dtype)[:, None]


def extended(known: Regions, masks: Growing, groups: Sequence[int]) -> Regions:
    """`Regions.extended` with masks that grow."""
    column = None
    if not usual(groups):
        rows = [[name == group for name in range(known.group_count)] for group in groups]
        column = torch.tensor(rows, device=known.masks.device).unsqueeze(-1)
    counts = tuple(
        tuple(n + (name == group) for name, n in enumerate(row))
        for row, group in zip(known.counts, groups, strict=True)
    )
    same = known.spans is not None and len(set(groups)) == 1
    spans = grown_spans(known.spans, known.length, groups[0]) if same and known.spans is not None else None
    found = replace(known, masks=masks.add(column), counts=counts, spans=spans)
    if "codes" in vars(known):  # they grow as well
        new = np.array([group if group >= 0 else UNATTENDED for group in groups], np.uint8)
        vars(found)["codes"] = np.concatenate([known.codes, new[:, None]], axis=1)
    return found
