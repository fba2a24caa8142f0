"""What commands share: options and their bounds, loading with a note on standard error, files to write."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.output import note
from heal.errors import ConfigError, PromptError, TraceError

if TYPE_CHECKING:
    from heal.methods.base import Method
    from heal.trace import Trace
    from heal.vlm import VLM

EMBEDDED, RANDOM = "embedded", "random"
DTYPES = ("auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16")

MOST_TOKENS = 131_072
MOST_ROWS = 4_096
MOST_SCENES = 100_000
MOST_BEAMS = 256
HIGHEST_SEED = 2**63 - 1

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
AllowIncomplete = Annotated[
    bool,
    typer.Option(
        "--allow-incomplete",
        help="Load a checkpoint in which tensors are missing, left over or of another shape. The missing ones are "
        "random, so figures mean nothing.",
    ),
]
Device = Annotated[str | None, typer.Option(help="Where to put the model: cpu, cuda, cuda:1 …")]
MethodText = Annotated[
    str,
    typer.Option(
        "--method", help="A method with its options: heal:interval=5,masking=zero. See `heal list methods`."
    ),
]
Alpha = Annotated[float | None, typer.Option(help="Equilibrium of HEAL, in (0, 1). Default: the family's preset.")]
PrefixCache = Annotated[
    bool,
    typer.Option(
        "--prefix-cache",
        help="Read each prompt once for all methods: the same answers but for rounding, in a fraction of the time "
        "where they are short; what is kept counts in the memory of every method.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="The most tokens of an answer.")]
Seed = Annotated[
    int, typer.Option(min=0, max=HIGHEST_SEED, help="Of sampling, of methods that draw, and of the bootstrap.")
]


def _renamed(given: str | None) -> None:
    if given is not None:
        raise ConfigError("--images is now called --count: the number of pictures")


OldImages = Annotated[str | None, typer.Option("--images", hidden=True, callback=_renamed)]


def load(model: str, dtype: str, device: str | None, allow_incomplete: bool = False) -> VLM:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype cannot be {dtype!r}: choose auto, float32, bfloat16 or float16")
    if device is not None and device.partition(":")[0] == "meta":
        raise ConfigError("a model on the device 'meta' has no weights: choose cpu, cuda, cuda:1 …")
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
    from transformers import logging

    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()
    logging.disable_progress_bar()


def method_from(text: str, alpha: float | None) -> Method:
    from heal.methods import HEAL, parse

    method = parse(text)
    if alpha is None:
        return method
    if not isinstance(method, HEAL):
        raise ConfigError(f"--alpha belongs to heal, not to {method.name}: write {method.name}:option=value")
    if method.alpha is not None:
        raise ConfigError(f"alpha is given twice: --alpha {alpha} and {text}")
    return replace(method, alpha=alpha)


def check_prompt(prompt: str) -> None:
    """Bytes of a command line that are no text arrive as halves of characters, which no tokenizer takes."""
    if any("\ud800" <= sign <= "\udfff" for sign in prompt):
        raise PromptError("the prompt is not text in UTF-8")


def check_place(path: Path, what: str, *, folder: bool) -> None:
    """That something could be written there, before any work is done for it."""
    try:
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not folder and path.is_dir():
            raise ConfigError(f"{what} cannot be written to {path}: it is a folder")
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"{what} cannot be written to {path}: it is not an ordinary file")
        if not nearest.is_dir() and (folder or nearest != path):
            raise ConfigError(f"{what} cannot be written to {path}: {nearest} is not a folder")
        if not os.access(nearest, os.W_OK):
            raise ConfigError(f"{what} cannot be written to {path}: writing to {nearest} is not allowed")
    except OSError as error:
        raise ConfigError(f"{what} cannot be written to {path}: {error.strerror}") from error


def save_trace(trace: Trace, path: Path) -> None:
    try:
        trace.save(path)
    except OSError as error:
        raise TraceError(f"the trace cannot be written to {path}: {error.strerror}") from error
    note(f"trace: {path}")
