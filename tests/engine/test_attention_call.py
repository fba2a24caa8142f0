"""The forms of attention that methods need, compared with explicit sums in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heal.analysis.split import LANGUAGE, VISUAL
from heal.engine.attention_call import AttentionCall
from heal.engine.generation import Generation

ROWS, HEADS, KV, DIM, LENGTH = 2, 4, 2, 8, 11
PADDED = 2
"""Positions of padding in the second row."""


def plain_error() -> Tensor:
    raise AssertionError("plain attention is not needed here")


def call_of(queries: int, masked: bool, softcap: float | None = None, additive: bool = False) -> AttentionCall:
    """A prompt of LENGTH positions (positions 2 to 5 are visual), or its last `queries` positions."""
    rng = torch.Generator().manual_seed(queries + 10 * masked)
    query = torch.randn(ROWS, HEADS, queries, DIM, generator=rng)
    key, value = torch.randn(2, ROWS, KV, LENGTH, DIM, generator=rng)
    groups = torch.full((ROWS, LENGTH), LANGUAGE)
    groups[:, 2:6] = VISUAL
    generation: Generation[Any] = Generation(2)
    generation.read_prompt(groups)
    mask = None
    if masked:
        mask = torch.ones(queries, LENGTH, dtype=torch.bool).tril(LENGTH - queries).repeat(ROWS, 1, 1, 1)
        mask[1, ..., :PADDED] = False
    if additive and mask is not None:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    return AttentionCall(generation, 0, "full_attention", query, key, value, mask, DIM**-0.5, softcap, plain_error)


def expected(
    call: AttentionCall, change: Callable[[np.ndarray, tuple[int, int, int]], tuple[np.ndarray, float]]
) -> np.ndarray:
    """Sums over the keys that each query attends to. `change` maps its scores to new scores and additional terms."""
    query, key, value = (t.double().numpy() for t in (call.query, call.key, call.value))
    allowed = call.allowed().expand(ROWS, 1, -1, -1).numpy()
    out = np.zeros((ROWS, call.queries, HEADS, DIM))
    for row in range(ROWS):
        for head in range(HEADS):
            own = head // (HEADS // KV)
            for index in range(call.queries):
                scores = key[row, own] @ query[row, head, index] * call.scale
                if call.softcap is not None:
                    scores = call.softcap * np.tanh(scores / call.softcap)
                scores, extra = change(scores, (row, head, index))
                seen = allowed[row, 0, index] & np.isfinite(scores)
                if not allowed[row, 0, index].any():  # a query of padding: its output is never used
                    out[row, index, head] = np.nan
                    continue
                weights = np.exp(scores[seen])
                out[row, index, head] = weights @ value[row, own][seen] / (weights.sum() + extra)
    return out


def assert_same(found: Tensor, right: np.ndarray) -> None:
    used = ~np.isnan(right)
    assert used.mean() > 0.8
    np.testing.assert_allclose(found.double().numpy()[used], right[used], atol=1e-5, rtol=0)


every_call = pytest.mark.parametrize(
    ("queries", "masked", "softcap", "additive"),
    [(LENGTH, False, None, False), (LENGTH, True, None, False), (LENGTH, True, 2.0, True), (1, True, None, True)],
    ids=["prompt", "padded", "capped", "token"],
)


@every_call
def test_weights_and_combine(queries: int, masked: bool, softcap: float | None, additive: bool) -> None:
    call = call_of(queries, masked, softcap, additive)
    right = expected(call, lambda scores, _: (scores, 0.0))
    assert_same(call.combine(call.weights()), right)
    assert_same(call.attend(), right)
    last = slice(-1, None)
    assert call.weights(last).shape == (ROWS, HEADS, 1, LENGTH)
    assert_same(call.combine(call.weights(last)), right[:, -1:])
    assert_same(call.attend(queries=last), right[:, -1:])


@every_call
def test_scores_are_rescaled(queries: int, masked: bool, softcap: float | None, additive: bool) -> None:
    call = call_of(queries, masked, softcap, additive)
    right = expected(call, lambda scores, _: (1.5 * scores, 0.0))
    assert_same(call.attend(rescale=lambda scores: 1.5 * scores), right)


@every_call
def test_a_bias_for_columns_and_for_rows(queries: int, masked: bool, softcap: float | None, additive: bool) -> None:
    call = call_of(queries, masked, softcap, additive)
    visual = call.groups == VISUAL
    right = expected(call, lambda scores, at: (scores + 0.7 * visual[at[0]].numpy(), 0.0))
    assert_same(call.attend(bias=0.7 * visual[:, None, None]), right)
    table = torch.randn(1, HEADS, queries, LENGTH, generator=torch.Generator().manual_seed(3))
    right = expected(call, lambda scores, at: (scores + table[0, at[1], at[2]].double().numpy(), 0.0))
    assert_same(call.attend(bias=table), right)


@every_call
def test_dropped_keys(queries: int, masked: bool, softcap: float | None, additive: bool) -> None:
    call = call_of(queries, masked, softcap, additive)
    keep = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    keep[0, 3:5] = keep[1, 4] = False
    right = expected(call, lambda scores, at: (np.where(keep[at[0]].numpy(), scores, np.inf), 0.0))
    assert_same(call.attend(keep=keep[:, None, None]), right)


@every_call
def test_an_extra_key_without_a_value(queries: int, masked: bool, softcap: float | None, additive: bool) -> None:
    """FarSight: a constant in the normaliser of each query and head."""
    call = call_of(queries, masked, softcap, additive)
    sink = torch.randn(1, HEADS, queries, generator=torch.Generator().manual_seed(4))
    right = expected(call, lambda scores, at: (scores, float(sink[0, at[1], at[2]].double().exp())))
    assert_same(call.attend(sink=sink), right)


def test_blocks_cover_the_queries_once() -> None:
    call = call_of(LENGTH, True)
    assert [(b.start, b.stop) for b in call.blocks(size=4)] == [(0, 4), (4, 8), (8, 11)]
    assert [(b.start, b.stop) for b in call.blocks(slice(-3, None), size=2)] == [(8, 10), (10, 11)]


def test_a_prompt_is_never_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    original = AttentionCall.scores

    def scores(self: AttentionCall, queries: slice = slice(None)) -> Tensor:
        out = original(self, queries)
        widths.append(out.shape[2])
        return out

    monkeypatch.setattr("heal.engine.attention_call.BLOCK", 4)
    monkeypatch.setattr(AttentionCall, "scores", scores)
    call_of(LENGTH, True).attend()
    assert widths == [4, 4, 3]


def test_only_the_newest_query_is_replaced() -> None:
    whole = torch.randn(ROWS, LENGTH, HEADS, DIM)
    call = call_of(LENGTH, True)
    kept: list[Tensor] = []

    def plain() -> Tensor:
        if not kept:
            kept.append(whole.clone())
        return kept[0]

    vars(call)["plain"] = plain
    new = torch.randn(ROWS, HEADS, DIM)
    out = call.with_newest(new)
    assert torch.equal(out[:, -1], new)
    assert torch.equal(out[:, :-1], whole[:, :-1])
    assert torch.equal(call.plain_newest, whole[:, -1])
    assert call.newest_replaced
