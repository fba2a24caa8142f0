"""HEAL compared with an independent implementation, and refreshes of head types, on every architecture."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from heal import HEAL, HeadType
from tests.known import known
from tests.laws import oracle
from tests.laws.conftest import LAYERS, NEW, ROWS, WINDOW, Run, inputs_of, model_of, rows_of, run
from tests.laws.heal_cases import NEUTRAL_SINKS, NOISY, SEES, ZERO, assert_logits, every_model, moved
from tests.zoo import Row

UNKNOWN = int(HeadType.UNKNOWN)


# ── compared with an independent implementation ──────────────────────────────────────────────────────


def oracle_settings(method: HEAL) -> oracle.Settings:
    assert isinstance(method.alpha, float)
    assert method.limit is not None
    return oracle.Settings(
        alpha=method.alpha,
        limit=method.limit,
        interval=method.interval,
        sigma_causal=method.sigma_causal,
        sigma_info=method.sigma_info,
        neutral_sinks=method.sinks == "neutral",
        layers=method.layers or tuple(range(LAYERS)),
    )


def assert_oracle(name: str, method: HEAL, rows: tuple[Row, ...]) -> Run:
    runs = [run(name, replace(method, path=path), rows, causal=True) for path in ("fast", "reference")]
    for index, row in enumerate(rows):
        batch = inputs_of(name, (row,), causal=True)
        steps = oracle.generate(model_of(name), batch, NEW, oracle_settings(method))
        for out in runs:
            assert_steps(out, index, steps)
    assert all(known(out.fired).steps == NEW for out in runs)
    return runs[0]


def assert_steps(out: Run, row: int, steps: list[oracle.Step]) -> None:
    for step, (record, expected) in enumerate(zip(out.records, steps, strict=True)):
        np.testing.assert_array_equal(record.values["types"][row], expected.types)
        known = expected.types != UNKNOWN
        for name in ("visual", "language", "total", "contribution"):
            measured, right = record.values[name][row].numpy(), getattr(expected, name)
            # a score near 0 is a difference of similarities of order 1
            np.testing.assert_allclose(measured[known], right[known], rtol=1e-4, atol=1e-5)
            assert np.isnan(measured[~known]).all()
        for name in ("beta", "gamma"):
            factor = record.values[name][row].nan_to_num(1.0)
            np.testing.assert_allclose(factor, getattr(expected, name), rtol=1e-4)
        assert_logits(out.logits[row, step].double(), torch.from_numpy(expected.logits))


@every_model
def test_both_paths_equal_the_oracle(name: str) -> None:
    out = assert_oracle(name, ZERO, rows_of(name)[2:])
    assert set(out.stacked("types").unique().tolist()) >= {0, 2, 3, 4}


@every_model
def test_both_paths_equal_the_oracle_with_neutral_sinks(name: str) -> None:
    out = assert_oracle(name, NEUTRAL_SINKS, ROWS[1:3])
    assert (out.stacked("types") == int(HeadType.INFO_REDUNDANT)).any()


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", WINDOW])
def test_layers_that_are_not_used_are_unchanged(name: str) -> None:
    out = assert_oracle(name, replace(ZERO, layers=(1,)), ROWS[:3])
    others = torch.tensor([0, 2])
    assert (out.stacked("types")[:, :, others] == UNKNOWN).all()
    assert (out.stacked("types")[:, :, 1] != UNKNOWN).all()
    assert out.stacked("beta")[:, :, others].isnan().all()
    assert out.stacked("beta")[:, :, 1].isfinite().all()


@every_model
def test_first_token_is_calibrated(name: str) -> None:
    """The comparison with the oracle checks the values."""
    out = run(name, NOISY)
    off = ((out.records[0].values["beta"].nan_to_num(1.0) - 1).abs() > 1e-3).any(-1).any(-1)
    assert off.tolist() == SEES
    change = moved(out, run(name))
    assert (change[off] > 1e-2).all()
    assert (change[~off] < 1e-4).all()


# ── types ────────────────────────────────────────────────────────────────────────────────────────────


def retyped(record: Any) -> np.ndarray:
    """The types from the scores of a step, according to the oracle."""
    scores = [record.values[name].double().numpy() for name in ("visual", "language", "total", "contribution")]
    settings = oracle.Settings(alpha=0.5)
    rows = [[score[row] for score in scores] for row in range(len(ROWS))]
    return np.stack([oracle.classify(v, w, total, causal, settings) for v, w, total, causal in rows])


@every_model
def test_types_are_refreshed_at_intervals_and_used_from_the_next_step(name: str) -> None:
    records = run(name, NOISY).records
    types = [record.values["types"] for record in records]
    assert [record.refreshed for record in records] == [True, False, True, False]
    assert torch.equal(types[0], types[1])
    assert torch.equal(types[0], types[2])
    assert not torch.equal(types[2], types[3])
    np.testing.assert_array_equal(types[3], retyped(records[2]))


@pytest.mark.parametrize(("interval", "refreshed"), [(5, [0, 5, 10]), (10, [0, 10]), (1000, [0])])
def test_interval_counts_from_the_first_token(interval: int, refreshed: list[int]) -> None:
    records = run("llava", HEAL(interval=interval), ROWS[:2], new=12).records
    assert [step for step, record in enumerate(records) if record.refreshed] == refreshed
    types = [record.values["types"] for record in records]
    turns = [step for step in range(1, 12) if not torch.equal(types[step], types[step - 1])]
    assert turns == [step + 1 for step in refreshed[1:]]
