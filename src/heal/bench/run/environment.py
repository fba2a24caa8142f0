"""The environment of a run: versions, git revision, hardware, weights and memory."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heal.engine.transformers_api import checkpoint_name
from heal.errors import ModelError
from heal.extras import optional
from heal.tracing import versions

with optional():
    import xxhash

if TYPE_CHECKING:
    from heal.vlm import VLM

FINGERPRINT = "xxh3:"
MACHINE_DEPENDENT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "_attn_implementation")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def environment() -> dict[str, Any]:
    """Versions, revision and hardware. They are recorded, and may change when a run is resumed."""
    return {"versions": versions(), "revision": revision(), "hardware": hardware()}


def revision() -> dict[str, Any] | None:
    """The git revision of the checkout this package is imported from, if there is one."""
    here = Path(__file__).parents[1]
    tracked = _git(here, "ls-files", "--error-unmatch", str(Path(__file__).relative_to(here)))
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
    """Hash all weights as they are in memory, so that changes made after loading are detected.

    Hashes about 10 GB/s. Weights that accelerate has offloaded to disk are hashed from their checkpoint files.
    """
    digest, kept_elsewhere = xxhash.xxh3_128(), False
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if not isinstance(tensor, torch.Tensor):  # extra state of a module
            digest.update(f"{name} {tensor!r}\n".encode())
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        kept_elsewhere = kept_elsewhere or tensor.is_meta
        if not tensor.is_meta:
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if kept_elsewhere:
        digest.update(files_fingerprint(model).encode())
    return FINGERPRINT + digest.hexdigest()


def files_fingerprint(model: torch.nn.Module) -> str:
    """Hash the checkpoint files of a model. Hashes are cached while size and modification time stay the same."""
    name = checkpoint_name(model)
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json") if name else None
        folder = Path(found).parent if isinstance(found, str) else folder
    files = sorted(folder.glob("*.safetensors")) if name else []
    if not files:
        raise ModelError(
            f"weights of {name or 'the model'} are neither in memory nor in a local folder: they cannot be identified"
        )
    return " ".join(_file_hash(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@lru_cache(maxsize=256)
def _file_hash(path: Path, size: int, time: int) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def settings_fingerprint(vlm: VLM) -> str:
    """Hash everything besides the weights that affects answers: configs, tokenizer, processor, template."""
    model, processor, tokenizer = vlm.model, vlm.processor, vlm.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = json.loads(backend.to_str()) if backend is not None else sorted(tokenizer.get_vocab().items())
    if isinstance(words, dict):
        words = {
            key: value for key, value in words.items() if key not in ("padding", "truncation")
        }  # set by each call
    images = getattr(processor, "image_processor", None)
    parts = {
        "config": _machine_independent(model.config.to_dict()),
        "generation": _machine_independent(model.generation_config.to_dict()),
        "tokenizer": words,
        "images": _machine_independent(images.to_dict()) if images is not None else None,
        "template": getattr(processor, "chat_template", None),
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return FINGERPRINT + xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def _machine_independent(value: Any) -> Any:
    """Drop entries that depend on the machine or are recorded elsewhere: paths, versions, dtype."""
    if isinstance(value, dict):
        return {str(k): _machine_independent(v) for k, v in value.items() if k not in MACHINE_DEPENDENT}
    return [_machine_independent(v) for v in value] if isinstance(value, (list, tuple)) else value


def partial_fingerprint(text: Any) -> bool:
    """Whether a fingerprint comes from an older version, which hashed only part of the weights."""
    return isinstance(text, str) and not text.startswith(FINGERPRINT)


class Peak:
    """Peak memory since `start`: on the GPU if the model is there, otherwise of the process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with suppress(OSError):  # otherwise the peak of the whole process is reported
            CLEAR.write_text("5")  # Linux: reset the high-water mark

    def read(self) -> int:
        """Peak memory in bytes; 0 if it cannot be determined."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
            return int(line.split()[1]) * 1024
        except (OSError, StopIteration):
            return _process_peak()


def _process_peak() -> int:
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
