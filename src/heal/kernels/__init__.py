"""Kernels for GPUs, in Triton: the decoding step of one layer as one or two launches.

Nothing here is imported until it is used: without Triton, everything else works.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

OLDEST = (8, 0)
"""The oldest compute capability that the kernels are compiled for: bf16 in tensor cores."""


def available(device: torch.device | str) -> str | None:
    """None if the kernels run on this device, otherwise why not."""
    device = torch.device(device)
    if find_spec("triton") is None:
        return 'Triton is not installed: run `pip install ".[gpu]"` in the folder of heal'
    if interpreted():
        return None
    if device.type != "cuda":
        return f"the kernels need a GPU, and the model is on {device.type}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < OLDEST:
        return f"the GPU has compute capability {torch.cuda.get_device_capability(device)}, older than {OLDEST}"
    return None


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any device: slow, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
