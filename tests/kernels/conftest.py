"""Kernels run on the GPU if there is one, otherwise in Triton's interpreter. Without Triton, there are no tests."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

collect_ignore_glob = [] if find_spec("triton") else ["test_[!c]*.py", "test_ca*.py", "test_co*.py"]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if DEVICE.type == "cpu" and find_spec("triton"):
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
