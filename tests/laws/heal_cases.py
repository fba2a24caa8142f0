"""Options, rows and searches for the tests of HEAL, and comparisons of two runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from heal import HEAL
from heal.methods import heal_runtime
from tests.laws.conftest import EVERY, ROWS, Run

ZERO = HEAL(alpha=0.6, masking="zero", replacement="zero", interval=2, sigma_causal=1.0)
NEUTRAL_SINKS = replace(ZERO, sinks="neutral", sigma_info=1.0)
NOISY = HEAL(interval=2, preset="gaussian")
EXPECTED = HEAL(interval=2)
MEASURE = replace(NOISY, calibrate=False)
MIXED = ROWS[2:]  # two images, and text only
BEAMS: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 3, "new": 5}
SAMPLES = {"do_sample": True, "num_return_sequences": 2}
SEES = [row.images > 0 for row in ROWS]

every_model = pytest.mark.parametrize("name", EVERY)


def assert_logits(one: Tensor, other: Tensor, atol: float = 1e-4) -> None:
    assert_close(one, other, atol=atol, rtol=0)


def assert_plain(out: Run, plain: Run) -> None:
    """Relative to the largest logit, because two ways to compute the plain model differ by 1e-5."""
    assert_logits(out.logits, plain.logits, atol=1e-5 * max(1.0, float(plain.logits.abs().max())))


def moved(one: Run, other: Run, step: int = 0) -> Tensor:
    """The difference of the logits of a step, for each row."""
    return (one.logits[:, step] - other.logits[:, step]).abs().amax(-1)


real_factors = heal_runtime.joint_factors


def at_equilibrium(
    information: Tensor, least: Tensor, targets: Tensor, limit: float | None, one_sided: bool = False
) -> Tensor:
    """Every head is already at its target."""
    # in single precision, 1 − α would cancel for heads with little language information
    parts = information[..., :2].double()
    return real_factors(information.double(), least, parts / parts.sum(-1, keepdim=True), limit).float()


def assert_fired(alone: Run, batch: Run, own: slice) -> None:
    for one, other in zip(alone.rows, batch.rows[own], strict=True):
        assert (one.steps, one.changes) == (other.steps, other.changes)
        assert one.sizes == pytest.approx(other.sizes, rel=1e-3)
    if alone.records:  # text-only rows are not measured
        assert torch.equal(alone.stacked("types"), batch.stacked("types")[own])
