"""The functions that Numba compiles, compared with the torch forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("numba")

from heal import HEAL
from heal.analysis.calibration import factors, joint_factors
from heal.analysis.contribution import Shift, projection_and_sums, squared_norms
from heal.analysis.counterfactual import Attended
from heal.analysis.expected import StepTables, expected_scores
from heal.analysis.information import DEAD_ZONE, MEASURES
from heal.analysis.lognormal import Bank, NodeTables
from heal.analysis.moments import Moments
from heal.analysis.split import Regions, split_attention
from heal.kernels import cpu, cpu_attention
from heal.methods import heal_native
from heal.methods.heal_native import NativeOutcome, NativeStep
from tests.analysis.conftest import CPU, attended, noise

EVEN = ("LLVVVVVVLLLL", "LLVVVVVVLLLL")
UNEVEN = ("LLVVVVVVLLLL", "..LLVVVVLLLL", "LLLL.LLLLLLL")
TABLES = NodeTables(CPU)


def native(
    at: Attended, config: HEAL, targets: torch.Tensor, calibrated: torch.Tensor
) -> tuple[NativeOutcome, Moments]:
    moments = Moments.of(at.key, at.value, at.regions)
    least = torch.where(calibrated, DEAD_ZONE, torch.inf)
    tables = StepTables.of(at.regions, at.scale, TABLES)
    return NativeStep(config).run(at, moments, False, tables, least, targets), moments


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("patterns", [EVEN, UNEVEN])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_a_step_equals_the_torch_form(patterns, groups, heads, measure, small, monkeypatch):
    """`small`: whether the attention is split by Numba or by sdpa."""
    monkeypatch.setattr(heal_native, "SMALL", 2**18 if small else 0)
    if groups == 3:
        patterns = tuple("N" + row[1:] for row in patterns)
    at = attended(patterns, heads=heads[0], kv_heads=heads[1], groups=groups)
    calibrated = torch.rand(len(patterns), heads[0], generator=torch.Generator().manual_seed(0)) < 0.8
    targets = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    for one_sided in (False, True):
        config = HEAL(alpha=0.6, measure=measure, drift="language" if one_sided else "both")
        found, moments = native(at, config, targets, calibrated)
        tables = StepTables.of(at.regions, at.scale, TABLES)
        scores = expected_scores(at, moments, tables, measure).flatten(1, 2)
        assert_close(found.scores, scores, atol=1e-6, rtol=0)
        least = torch.where(calibrated, DEAD_ZONE, torch.inf)
        both = joint_factors(found.scores, least, targets[0], 2.0, one_sided)
        assert_close(found.factors, both, atol=1e-9, rtol=0)
        assert_close(found.out, at.real.scaled(both.unflatten(1, (heads[1], -1)))[:, 0], atol=2e-6, rtol=1e-5)
        assert_close(found.plain, at.real.output.flatten(1, 3), atol=2e-6, rtol=1e-5)


def test_joint_factors_are_the_factors_of_the_paper():
    generator = torch.Generator().manual_seed(1)
    information = torch.randn(3, 8, 3, generator=generator) + 0.3
    calibrated = torch.rand(3, 8, generator=generator) < 0.7
    least = torch.where(calibrated, 0.0, torch.inf)
    for limit in (None, 1.0, 2.0):
        for one_sided in (False, True):
            beta, gamma = factors(information[..., 0], information[..., 1], calibrated, 0.4, limit, one_sided)
            found = joint_factors(information, least, torch.tensor([0.4, 0.6]), limit, one_sided)
            assert_close(found, torch.stack([beta, gamma], -1))


def test_targets_by_head_and_no_limit():
    at = attended(EVEN)
    targets = torch.linspace(0.2, 0.8, 4, dtype=torch.float64)
    targets = torch.stack([targets, 1 - targets], -1)
    everything = torch.ones(2, 4, dtype=torch.bool)
    found, _ = native(at, HEAL(factor_limit=None), targets, everything)
    least = torch.full((2, 4), DEAD_ZONE)
    assert_close(found.factors, joint_factors(found.scores, least, targets, None), atol=1e-9, rtol=0)


def test_moments_grow_as_in_torch():
    at = attended(UNEVEN)
    shorter = Attended(at.query, at.key[:, :, :-1], at.value[:, :, :-1], Regions.of(at.regions.masks[..., :-1]), 1.0)
    one, other = (Moments.of(shorter.key, shorter.value, shorter.regions) for _ in range(2))
    NativeStep(HEAL()).append(at, one)
    other.append(at.key[:, :, -1], at.value[:, :, -1], at.regions.masks[..., -1])
    for name in ("count", "mean", "squared"):
        assert_close(getattr(one, name), getattr(other, name))
    assert_close(one.mean, Moments.of(at.key, at.value, at.regions).mean, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_reach_the_output(bad):
    """A NaN in a key makes the output of its row NaN, as in torch, and no other row."""
    at = attended(EVEN)
    at.key[0, :, 5] = bad
    found, _ = native(at, HEAL(), torch.tensor([[0.5, 0.5]]).double(), torch.ones(2, 4, dtype=torch.bool))
    plain = split_attention(at.query, at.key, at.value, at.regions, at.scale)[0].value
    assert found.out[0].isnan().any() == plain[0].isnan().any()
    assert found.out[1].isfinite().all()


def test_large_scores_do_not_overflow():
    at = attended(UNEVEN)
    at = replace(at, query=at.query * 1e4)
    found, _ = native(at, HEAL(), torch.tensor([[0.5, 0.5]]).double(), torch.ones(3, 4, dtype=torch.bool))
    assert found.scores.isfinite().all()
    np.testing.assert_allclose(found.plain.numpy(), at.real.output.flatten(1, 3).numpy(), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("multiplier", [1.0, 0.5])
def test_a_projection_and_its_contributions_equal_those_of_torch(bias, multiplier):
    generator = torch.Generator().manual_seed(2)
    projection = torch.nn.Linear(32, 24, bias=bias)
    residual, outputs = torch.randn(1, 24, generator=generator), torch.randn(1, 4, 8, generator=generator)
    shift = Shift.of(outputs, "expected", noise(), squared_norms(projection.weight.detach(), 4))
    with torch.no_grad():
        found = NativeStep(HEAL()).project(residual, outputs, shift.times(multiplier), projection, multiplier)
        assert found is not None
        whole, sums = projection_and_sums(
            residual, outputs, shift, projection.weight, projection.bias, multiplier=multiplier
        )
    assert_close(found[0], whole)
    assert_close(found[1].both, sums.both, atol=1e-5, rtol=1e-5)
    assert_close(found[1].contribution(), sums.contribution())


def test_exponentials_are_those_of_numpy():
    x = -np.linspace(0, 80, 4001)
    assert_close(np.array([cpu.exponential(v) for v in x]), np.exp(x), atol=0, rtol=1e-13)
    single = x.astype(np.float32)
    found = np.array([cpu_attention.exponential(v) for v in single], np.float32)
    assert_close(found, np.exp(single), atol=0, rtol=6e-7)
    for function in (cpu.exponential, cpu_attention.exponential):
        assert np.isnan(function(np.float32(np.nan)))
        assert function(np.float32(-np.inf)) < 1e-37


@pytest.mark.parametrize("n", [0, 1, 5, 64, 77, 1000])
def test_the_bank_gives_the_tables(n):
    """The compiled functions interpolate between two stored tables."""
    bank = Bank()
    low, high, share, add, factor = bank.column(n)
    table = np.float64(bank.array[low] + share * (bank.array[high] - bank.array[low])).reshape(-1, 2, 9)
    expected = TABLES.of([n])[0].numpy()
    assert_close(table[:, 0, 1:] + add, expected[:, 0, 1:], atol=1e-12, rtol=1e-12)
    assert_close(table[:, 1, 1:] * factor, expected[:, 1, 1:], atol=1e-12, rtol=1e-12)


def test_the_bank_grows():
    bank = Bank()
    columns = {n: bank.column(n)[:2] for n in range(1, 40)}
    for n, (low, high) in columns.items():
        assert bank.column(n)[:2] == (low, high)
        assert bank.array.shape[0] > max(low, high)
    assert len({low for low, _ in columns.values()}) > 4
