"""The kernels compile for GPUs, without spilled registers and with little shared memory."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from heal.kernels.launch import lanes, sizes

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DIMS, KV_GROUPS, CAPABILITIES = (64, 80, 96, 128, 256), (1, 4, 8), (80, 90)
SHARED = 48 * 1024
"""What every GPU has without asking for more."""
SPILLS = 32
"""Bytes per thread. Triton calls the assembler with --regAllocOptLevel=2, which rounds registers down to 96 where it
can and gives a few bytes away for it; without that option there are none."""


def job(kernel, dim, dtype, kv_group, neutral, capability, capped=False, measure=0):
    size = sizes(dim, kv_group, neutral, DTYPES[dtype], False)
    constants = {"DIM": dim, "DIMS": size.dims, "HEADS": size.heads, "NEUTRAL": neutral}
    if kernel != "finish_kernel":
        constants |= {"BLOCK": size.block, "GROUPS": size.groups, "SHARED": size.shared, "CAPPED": capped}
        constants |= {"UPCAST": False}
    if kernel != "split_kernel":
        constants |= {"APPEND": True, "MEASURE": measure, "ONE_SIDED": True, "LANES": lanes(size.heads)}
    if kv_group == 1:
        constants["kv_group"] = 1
    warps = 4 if kernel == "finish_kernel" else size.warps
    module = "heal.kernels.step"
    return {
        "module": module, "kernel": kernel, "dtype": dtype, "capability": capability, "constants": constants,
        "warps": warps, "stages": 3 if kernel == "finish_kernel" else size.stages,
    }  # fmt: skip


def causal(kernel, dtype, capability, dim=128):
    constants = {"DIM": dim, "DIMS": 128, "BLOCK": 32}
    if kernel == "contribution_kernel":
        constants = {"HEADS": 32, "BLOCK": 1024, "MEASURE": 2, "RANDOM": True}
    return {
        "module": "heal.kernels.causal", "kernel": kernel, "dtype": dtype, "capability": capability,
        "constants": constants, "warps": 4, "stages": 3,
    }  # fmt: skip


def splits():
    """Every dimension with every type and group size; the other options alternate. Half of them run by default."""
    return [
        job("split_kernel", dim, dtype, kv_group, bool(i & 1), CAPABILITIES[i // 2 & 1], capped=bool(i & 4))
        for i, (dim, dtype, kv_group) in enumerate(product(DIMS, DTYPES, KV_GROUPS))
    ]


def steps(kernel):
    """These take several seconds each."""
    chosen = [(64, 1, False), (128, 4, True), (128, 8, False), (256, 1, True), (256, 8, False)]
    return [
        job(kernel, dim, "bf16" if i else "fp16", kv_group, neutral, CAPABILITIES[i % 2], i == 1, i % 3)
        for i, (dim, kv_group, neutral) in enumerate(chosen)
    ]


def causals():
    kernels, dtypes = ("sums_kernel", "contribution_kernel"), ("bf16", "fp32")
    return [causal(*case) for case in zip(kernels * 2, sorted(dtypes * 2), CAPABILITIES * 2, strict=True)]


def appends():
    return [
        {
            "module": "heal.kernels.append", "kernel": "append_kernel", "dtype": "bf16", "capability": capability,
            "constants": {"DIM": 80, "DIMS": 128}, "warps": 4, "stages": 3,
        }
        for capability in CAPABILITIES
    ]  # fmt: skip


def everything():
    """The full product for attention, and every dimension and group size for the whole step."""
    cases = product(("split_kernel",), DIMS, DTYPES, KV_GROUPS, (False, True), CAPABILITIES)
    longer = product(("whole_kernel", "finish_kernel"), DIMS, ("bf16",), KV_GROUPS, (False, True), CAPABILITIES)
    return [job(*case) for case in cases] + [job(*case, measure=2) for case in longer]


def needs(jobs):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("compiling.py")
    done = subprocess.run(
        [sys.executable, str(program)], input=json.dumps(jobs), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(jobs):
    for asked, found in zip(jobs, needs(jobs), strict=True):
        assert found["spills"] <= SPILLS, (asked, found)
        assert found["shared"] <= SHARED, (asked, found)


BATCHES = {
    "attention of two groups": lambda: splits()[::4],
    "attention with neutral positions": lambda: splits()[1::4],
    "whole step": lambda: steps("whole_kernel"),
    "end of a step": lambda: steps("finish_kernel"),
    "contributions": causals,
    "moments": appends,
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_nothing_is_spilled(batch):
    check(batch())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_nothing_is_spilled_in_any_variant(part):
    check(everything()[part::8])
