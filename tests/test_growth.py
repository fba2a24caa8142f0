"""Growth with the context and the batch: points, memory by hand, and fitted lines. Times are not judged."""

import math

import pytest

from heal.growth import Growth, fit, measure
from heal.methods import HEAL
from heal.speed_model import Shape

TINY = Shape(hidden=32, intermediate=48, heads=4, kv_heads=2, positions=24, visual=12)


@pytest.fixture(scope="module")
def found() -> Growth:
    return measure(HEAL(masking="zero", replacement="zero"), contexts=(24, 48), batches=(1, 2), shape=TINY)


def test_points(found: Growth) -> None:
    assert [(p.context, p.batch) for p in found.points] == [(24, 1), (48, 1), (24, 2)]
    assert all(min(p.plain_ms, p.heal_ms, p.ratio) > 0 for p in found.points)
    assert all(p.calibrated > 0.5 for p in found.points)  # all heads are chosen


def test_memory(found: Growth) -> None:
    short, long, wide = found.points
    position = 2 * 2 * 8 * 4 * found.layers  # keys and values, heads, dimension, bytes
    assert long.kv_bytes - short.kv_bytes == 24 * position
    assert wide.kv_bytes == 2 * short.kv_bytes
    assert short.state_bytes == long.state_bytes < wide.state_bytes
    assert 0 < short.workspace_bytes <= long.workspace_bytes


def test_lines(found: Growth) -> None:
    names = ["plain by context", "heal by context", "plain by batch", "heal by batch"]
    assert [line.name for line in found.lines] == names


def test_fit() -> None:
    line = fit("any", "context", [1.0, 2.0, 3.0], [5.0, 7.0, 9.0])
    assert (line.slope, line.offset, line.r_squared) == pytest.approx((2, 3, 1))
    assert fit("any", "context", [1.0, 2.0, 3.0], [1.0, 2.0, 1.0]).r_squared == pytest.approx(0)
    assert math.isnan(fit("any", "context", [1.0], [5.0]).slope)
    assert math.isnan(fit("any", "context", [1.0, 2.0], [5.0, 5.0]).r_squared)
