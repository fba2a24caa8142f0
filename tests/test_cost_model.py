"""The cost model: bytes by hand, limits of the ratio, and the label of everything that is printed."""

import pytest

from heal.cost_model import DECODERS, DEVICES, FUSED_LAUNCHES, LABEL, Device, counted, extra_bytes, predict
from heal.errors import ConfigError

LLAVA, QWEN = DECODERS["llava-1.5-7b"], DECODERS["qwen2.5-vl-7b"]
LAUNCHES = {"plain": 40.0, "fast": 160.0, "fused": 41.0, "reference": 230.0}


def test_weights_are_those_of_7b_models() -> None:
    assert LLAVA.weight_bytes / 2e9 == pytest.approx(6.6, abs=0.1)  # without the embedding table
    assert QWEN.weight_bytes / 2e9 == pytest.approx(7.07, abs=0.1)


def test_kv_bytes() -> None:
    assert LLAVA.kv_bytes(1, 1) == 2 * 2 * 32 * 4096
    assert QWEN.kv_bytes(8, 1024) == 2 * 2 * 28 * 8 * 1024 * 4 * 128


def test_extra_bytes_are_ordered() -> None:
    fused, fast, gaussian, reference = (
        extra_bytes(path, LLAVA, 8, 8192) for path in ("fused", "fast", "fast,gaussian", "reference")
    )
    assert 0 == extra_bytes("plain", LLAVA, 8, 8192) < fused < fast < gaussian < LLAVA.kv_bytes(8, 8192) < reference
    assert extra_bytes("fused", LLAVA, 8, 1024) == fused  # it does not grow with the context
    with pytest.raises(ConfigError, match="no cost model for the path 'other'"):
        extra_bytes("other", LLAVA, 1, 1)


def test_ratios_by_hand() -> None:
    device = Device("own", 5.0, 1000.0)
    (row,) = predict(device, {"plain": 40.0, "fused": 80.0}, ["llava-1.5-7b"], [1], [1024])
    memory = (LLAVA.weight_bytes + LLAVA.kv_bytes(1, 1024)) / 1e12 * 1e3
    own = memory + extra_bytes("fused", LLAVA, 1, 1024) / 1e12 * 1e3
    launch = 40 * 32 * 5e-3
    assert (row.launch_ms, row.memory_ms) == pytest.approx((2 * launch, own))
    assert row.overlapped == pytest.approx(max(2 * launch, own) / max(launch, memory))
    assert row.serial == pytest.approx((2 * launch + own) / (launch + memory))
    assert row.captured == pytest.approx(own / memory)
    assert row.label == LABEL == "predicted, not measured"


def test_launches_stop_mattering_with_long_contexts() -> None:
    rows = predict(DEVICES["a100"], LAUNCHES, ["llava-1.5-7b"], [1, 32], [1024, 32768])
    found = {(row.path, row.batch, row.context): row for row in rows}
    assert found["fast", 1, 1024].overlapped > 3
    assert found["fast", 32, 32768].overlapped < 1.05
    assert all(row.overlapped >= 1 and row.serial >= 1 and row.captured >= 1 for row in rows)
    assert {row.path for row in rows} == {"fast", "fused", "reference"}


def test_launches_by_path() -> None:
    found = counted({"plain": 42.0, "heal:fast": 160.0, "vhr": 43.0})
    assert found == {"plain": 42.0, "fast": 160.0, "fused": 42.0 + FUSED_LAUNCHES}
    for name in ("heal:fused (Numba)", "heal:fused (Triton)"):
        assert counted({"plain": 42.0, name: 44.0}) == {"plain": 42.0, "fused": 44.0}
    rows = predict(DEVICES["a100"], counted({"plain": 42.0, "heal:fast,gaussian": 90.0}))
    assert {row.path for row in rows} == {"fast,gaussian", "fused"}


def test_errors() -> None:
    with pytest.raises(ConfigError, match="must be greater than 0"):
        Device("none", 0.0, 1.0)
    with pytest.raises(ConfigError, match="the launches of the plain model are missing"):
        predict(DEVICES["h100"], {"fast": 1.0})
