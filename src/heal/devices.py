"""Devices and floating-point types by name."""

from __future__ import annotations

from typing import Any

import torch

from heal.errors import ConfigError, first_line


def torch_dtype(dtype: str | torch.dtype, auto: Any = "auto") -> Any:
    """A floating-point type by name. `auto` is returned for the type of the checkpoint."""
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return auto if dtype == "auto" else dtype
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    found = getattr(torch, names.get(dtype, dtype), None) if dtype else None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"dtype cannot be {dtype!r}: choose auto, float32, bfloat16 or float16")
    return found


def existing_device(device: str | torch.device) -> torch.device:
    """The device, if it can be used on this machine."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"there is no device {str(device)!r} here: {first_line(error)}") from error
    return place


def usable_device(device: str | torch.device) -> torch.device:
    """The device, if a model can run on it."""
    place = existing_device(device)
    if place.type == "meta":
        raise ConfigError("a model on device 'meta' has no weights: choose cpu, cuda, cuda:1 …")
    return place


def cuda_indices(device: torch.device) -> list[int]:
    """The devices whose generators must be saved besides that of the CPU."""
    return [device.index or 0] if device.type == "cuda" else []
