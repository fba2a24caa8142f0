"""What a run ran on: versions, revision, hardware, weights, memory."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from heal.tracing import versions

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def environment() -> dict[str, Any]:
    """What is worth knowing afterwards, and may differ when a run goes on."""
    return {"versions": versions(), "revision": revision(), "hardware": hardware()}


def revision() -> dict[str, Any] | None:
    """Of the checkout that this package is used from, if it is one."""
    here = Path(__file__).parent
    tracked = _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
    commit = _git(here, "rev-parse", "HEAD")
    if tracked is None or commit is None:
        return None
    return {"commit": commit, "changed": bool(_git(here, "status", "--porcelain", "--untracked-files=no", "."))}


def _git(folder: Path, *args: str) -> str | None:
    try:
        ended = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def hardware() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(terse=True),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Of the shape and the first values of every parameter: a retrained checkpoint under the same name shows."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        if not parameter.is_meta:
            first = parameter.detach().flatten()[:16].to("cpu", torch.float64)
            digest.update(first.numpy().tobytes())
    return digest.hexdigest()[:16]


class Peak:
    """The most memory held since `start`: on the GPU if the model is there, else by the process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with suppress(OSError):  # where this cannot be done, the mark is that of the whole run
            CLEAR.write_text("5")  # Linux: the high-water mark begins anew

    def read(self) -> int:
        """Bytes; 0 where nothing can tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
            return int(line.split()[1]) * 1024
        except (OSError, StopIteration):
            return _highest()


def _highest() -> int:
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
