"""What commands share: options, loading with a note on standard error, output."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.errors import ConfigError, TraceError
from heal.plain import plain

if TYPE_CHECKING:
    from pathlib import Path

    from heal.methods.base import Method
    from heal.trace import Trace
    from heal.vlm import VLM

EMBEDDED, RANDOM = "embedded", "random"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A checkpoint folder or hub name; 'embedded': the small model that comes with the package; "
        "'random': a tiny untrained LLaVA.",
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="Where to put the model: cpu, cuda, cuda:1 …")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
MethodText = Annotated[
    str,
    typer.Option(
        "--method", help="A method with its options: heal:interval=5,masking=zero. See `heal list methods`."
    ),
]
Alpha = Annotated[float | None, typer.Option(help="Equilibrium of HEAL, in (0, 1). Default: the family's preset.")]
ReadOnce = Annotated[
    bool,
    typer.Option(
        "--read-once",
        help="Read each prompt once for all methods: the same answers but for rounding, in a fraction of the time "
        "where they are short; what is kept counts in the memory of every method.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")]


def note(text: str) -> None:
    """For a person, so never on standard output."""
    print(text, file=sys.stderr)


def load(model: str, dtype: str, device: str | None, allow_incomplete: bool = False) -> VLM:
    quiet()
    import torch

    from heal.vlm import VLM, existing_device, torch_dtype

    if model == RANDOM:
        note("model: a tiny LLaVA with RANDOM weights. It has learned nothing, so its words mean nothing.")
        vlm = VLM.random()
        vlm.model.to(None if device is None else existing_device(device), torch_dtype(dtype, torch.float32))
        return vlm
    if model == EMBEDDED:
        return VLM.embedded(dtype=torch_dtype(dtype, torch.float32), device=device)
    return VLM.load(model, dtype=dtype, device=device, allow_incomplete=allow_incomplete)


def quiet() -> None:
    """No progress bars or hints of other libraries between our lines."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers.utils import logging

    logging.disable_progress_bar()


def method_from(text: str, alpha: float | None) -> Method:
    from heal.methods import HEAL, parse

    method = parse(text)
    if alpha is None:
        return method
    if not isinstance(method, HEAL):
        raise ConfigError(f"--alpha belongs to heal, not to {method.name}: write {method.name}:option=value")
    return replace(method, alpha=alpha)


def save_trace(trace: Trace, path: Path) -> None:
    try:
        trace.save(path)
    except OSError as error:
        raise TraceError(f"the trace cannot be written to {path}: {error.strerror}") from error
    note(f"trace: {path}")


def emit(value: dict[str, Any]) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))
