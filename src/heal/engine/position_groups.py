"""The position groups: visual, language, and neutral."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heal.analysis.split import LANGUAGE, NEUTRAL, VISUAL
from heal.engine.layout import Layout
from heal.engine.masks import valid_positions


@dataclass(frozen=True)
class PositionGroups:
    """The position groups of a model, determined by token ids."""

    layout: Layout
    count: int
    """Number of groups: visual and language, and neutral if there are three."""

    def of_prompt(self, ids: Tensor | None, embeds: Tensor | None, mask: Any, later: bool) -> Tensor:
        """The groups [rows, positions] of a prompt. `later`: the prompt follows an earlier turn."""
        if ids is None:
            assert embeds is not None
            table = self.layout.model.get_input_embeddings()
            visual = torch.zeros(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
            for token in self.layout.visual_ids:
                visual |= (embeds == table(torch.tensor(token, device=embeds.device))).all(-1)
            special = torch.zeros_like(visual)
        else:
            visual = torch.isin(ids, torch.tensor(sorted(self.layout.visual_ids), device=ids.device))
            special = torch.isin(ids, torch.tensor(sorted(self.layout.special_ids), device=ids.device))
        if self.count <= NEUTRAL:
            return groups_of(visual)
        return groups_of(visual, special, None if later else first_positions(visual, mask))

    def of_answer(self, ids: Tensor) -> Tensor:
        """The groups [rows, tokens] of several generated tokens."""
        columns = [self.of_tokens(ids[:, at : at + 1]) for at in range(ids.shape[1])]
        return torch.tensor(columns, device=ids.device).T

    def of_tokens(self, ids: Tensor) -> list[int]:
        """The group of one generated token for each row."""
        if self.count <= NEUTRAL:
            return [LANGUAGE] * ids.shape[0]
        return [NEUTRAL if token in self.layout.special_ids else LANGUAGE for token in ids[:, 0].tolist()]


def groups_of(visual: Tensor, special: Tensor | None = None, first: Tensor | None = None) -> Tensor:
    """The group of each prompt position: visual or language; neutral for special and first tokens, if given."""
    groups = torch.where(visual, VISUAL, LANGUAGE)
    for sinks in (special, first):
        if sinks is not None:
            groups = torch.where(sinks & ~visual, NEUTRAL, groups)
    return groups


def first_positions(like: Tensor, mask: Any) -> Tensor:
    """True at the first token of each row of a prompt, from any kind of attention mask."""
    start = valid_positions(mask, like).to(torch.uint8).argmax(1)
    first = torch.zeros_like(like)
    first[torch.arange(like.shape[0], device=like.device), start] = True
    return first
