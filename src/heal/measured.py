"""What was measured at the tokens of an answer, complete or still in progress, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, UInt8
from torch import Tensor

from heal.analysis.alternatives import others
from heal.analysis.depths import DEPTHS, SUMMARIES
from heal.analysis.similarity import VisualStates
from heal.analysis.taxonomy import HeadType
from heal.analysis.uncertainty import FACTS, LIKELY, distribution_facts
from heal.engine.layout import Layout
from heal.engine.state import State
from heal.errors import HealError

HEADS = ("visual", "language", "total", "contribution", "beta", "gamma", "visual_attention")
"""Scores and factors of heads that a method may record."""


@dataclass(frozen=True, eq=False)
class TokenValues:
    """Generated tokens of one answer, and what the distributions that they were chosen from say about them."""

    ids: tuple[int, ...]
    at: tuple[int, ...]
    """The row of the batch in which each token was generated."""
    sample: int
    """The index of the prompt in the batch."""
    logprobs: Float32[np.ndarray, " step"]
    entropy: Float32[np.ndarray, " step"]
    margin: Float32[np.ndarray, " step"]
    alternatives: Int64[np.ndarray, "step other"]
    """The likeliest other tokens."""
    alternative_logprobs: Float32[np.ndarray, "step other"]

    @classmethod
    def of(cls, logits: Sequence[Tensor], ids: Sequence[int], at: Sequence[int], sample: int) -> TokenValues:
        """From the logits [rows, vocabulary] of each step."""
        pairs = zip(logits, at, strict=False)
        each = [step[row].float().log_softmax(-1) for step, row in pairs][: len(ids)]
        chosen = [float(step[token]) for step, token in zip(each, ids, strict=True)]
        facts = np.array([distribution_facts(step).tolist() for step in each], np.float32).reshape(-1, FACTS)
        return cls.of_facts(np.array(chosen, np.float32), facts, ids, at, sample)

    @classmethod
    def of_search(cls, values: Tensor, ids: Sequence[int], at: Sequence[int], sample: int) -> TokenValues:
        """From the log-probability and the `distribution_facts` [step, 1 + facts] that a search returns."""
        found = values[: len(ids)].float().cpu().numpy()
        return cls.of_facts(found[:, 0], found[:, 1:], ids, at, sample)

    @classmethod
    def of_facts(
        cls, logprobs: np.ndarray, facts: np.ndarray, ids: Sequence[int], at: Sequence[int], sample: int
    ) -> TokenValues:
        """From the log-probabilities of the tokens and the `distribution_facts` [step, facts] at them."""
        likely = facts[:, 2 : 2 + LIKELY].astype(np.int64)
        other = others(likely, facts[:, 2 + LIKELY :], np.array(ids, np.int64))
        return cls(tuple(ids), tuple(at), sample, logprobs, facts[:, 0], facts[:, 1], *other)

    def at_steps(self, steps: Sequence[int]) -> TokenValues:
        """Those of some tokens, for an answer of which others were left out."""
        chosen = list(steps)
        return TokenValues(
            tuple(self.ids[step] for step in chosen),
            tuple(self.at[step] for step in chosen),
            self.sample,
            self.logprobs[chosen],
            self.entropy[chosen],
            self.margin[chosen],
            self.alternatives[chosen],
            self.alternative_logprobs[chosen],
        )


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements by step, with the names that they have in a `Trace`. Missing values are NaN, types unknown."""

    visual: Float32[np.ndarray, "step layer head"]
    language: Float32[np.ndarray, "step layer head"]
    total: Float32[np.ndarray, "step layer head"]
    contribution: Float32[np.ndarray, "step layer head"]
    beta: Float32[np.ndarray, "step layer head"]
    gamma: Float32[np.ndarray, "step layer head"]
    visual_attention: Float32[np.ndarray, "step layer head"]
    types: UInt8[np.ndarray, "step layer head"]
    refreshed: Bool[np.ndarray, " step"]
    similarity: Float32[np.ndarray, "step depth summary"]
    agreement: Float32[np.ndarray, "step depth summary"]
    logprobs: Float32[np.ndarray, " step"]
    entropy: Float32[np.ndarray, " step"]
    margin: Float32[np.ndarray, " step"]
    alternatives: Int64[np.ndarray, "step other"]
    alternative_logprobs: Float32[np.ndarray, "step other"]

    def at_steps(self, steps: Sequence[int]) -> Measured:
        """Those at some tokens."""
        return Measured(**{name: values[list(steps)] for name, values in vars(self).items()})


def measured(state: State | None, layout: Layout, tokens: TokenValues) -> Measured:
    """The measurements at these tokens, from the records of the method. They may be fewer than were generated."""
    records = [] if state is None else state.records
    steps = len(tokens.ids)
    if records and len(records) < steps:
        raise HealError(f"{steps} tokens, but only {len(records)} steps were measured")
    rows = list(zip(records[:steps], tokens.at, strict=False))
    shape = (steps, len(layout.layers), layout.heads)

    def heads(name: str, dtype: Any, missing: float | int) -> np.ndarray:
        found = np.full(shape, missing, dtype)
        for step, (record, row) in enumerate(rows):
            if name in record.values:
                found[step] = record.values[name][row].float().cpu().numpy()
        return found

    similarity = np.full((steps, len(DEPTHS), len(SUMMARIES)), np.nan, np.float32)
    for step, (record, row) in enumerate(rows):
        if record.similarity is not None:
            similarity[step] = record.similarity[row].float().cpu().numpy()
    return Measured(
        **{name: heads(name, np.float32, np.nan) for name in HEADS},
        types=heads("types", np.uint8, HeadType.UNKNOWN),
        refreshed=np.array([record.refreshed for record, _ in rows] or [False] * steps, dtype=bool),
        similarity=similarity,
        agreement=_agreement(state, layout.model, tokens),
        logprobs=tokens.logprobs,
        entropy=tokens.entropy,
        margin=tokens.margin,
        alternatives=tokens.alternatives,
        alternative_logprobs=tokens.alternative_logprobs,
    )


def _agreement(state: State | None, model: Any, tokens: TokenValues) -> np.ndarray:
    """Similarity of the embedding of each token to the hidden states of the visual tokens."""
    states = None if state is None else state.visual_states
    vectors = None if states is None or not tokens.ids else _token_vectors(model, tokens.ids, states)
    if states is None or vectors is None:
        return np.full((len(tokens.ids), len(DEPTHS), len(SUMMARIES)), np.nan, np.float32)
    return states.compared(vectors, [tokens.sample] * len(vectors)).float().cpu().numpy()


@torch.no_grad()
def _token_vectors(model: Any, ids: Sequence[int], states: VisualStates) -> Tensor | None:
    """[tokens, depths, dim]: the input embedding, and the output embedding for the middle and the last layer.

    None if the weights cannot be read, because they are quantised or offloaded.
    """
    head = getattr(model.get_output_embeddings(), "weight", None)
    if head is None or head.is_meta or not head.is_floating_point() or head.shape[-1] != states.unit.shape[-1]:
        return None
    embedding = model.get_input_embeddings()
    device = next((p.device for p in embedding.parameters() if not p.is_meta), model.device)
    given = embedding(torch.tensor(list(ids), device=device)).to(head.device)
    output = head[torch.tensor(list(ids), device=head.device)]
    return torch.stack([given.to(output.dtype), output, output], dim=1)
