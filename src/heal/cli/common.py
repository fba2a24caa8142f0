"""Options, model loading and path checks that several commands share."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.output import note
from heal.errors import ConfigError, PromptError, TraceError

if TYPE_CHECKING:
    from heal.detect.model import Detector
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
        help="A checkpoint folder or Hub name, 'embedded' (the small model of this package) or 'random' (a tiny "
        "untrained LLaVA).",
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
AllowIncomplete = Annotated[
    bool,
    typer.Option(
        "--allow-incomplete",
        help="Load a checkpoint even if tensors are missing, unexpected or of the wrong shape. Missing tensors are "
        "random, so results are meaningless.",
    ),
]
Device = Annotated[str | None, typer.Option(help="Device of the model: cpu, cuda, cuda:1 …")]
MethodText = Annotated[
    str,
    typer.Option(
        "--method", help="A method with its options: heal:interval=5,masking=zero. See `heal list methods`."
    ),
]
Alpha = Annotated[
    float | None, typer.Option(help="Equilibrium of HEAL, in (0, 1). Default: the preset of the model family.")
]
PrefixCache = Annotated[
    bool,
    typer.Option(
        "--prefix-cache",
        help="Reuse the KV cache of each prompt for all methods. Answers are equal up to rounding, and runs with "
        "short answers are much faster. The cache counts towards the memory of every method.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, max=MOST_TOKENS, help="Maximum number of tokens of an answer.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N samples of each task.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in this folder.")]
TracePath = Annotated[
    Path | None, typer.Option(help="Save the trace (head types and scores) to this .safetensors file.")
]
Seed = Annotated[
    int, typer.Option(min=0, max=HIGHEST_SEED, help="Seed for sampling, methods with random draws and the bootstrap.")
]


def _renamed(given: str | None) -> None:
    if given is not None:
        raise ConfigError("--images was renamed to --count: the number of images")


OldImages = Annotated[str | None, typer.Option("--images", hidden=True, callback=_renamed)]


def load(model: str, dtype: str, device: str | None, allow_incomplete: bool = False) -> VLM:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype cannot be {dtype!r}: choose auto, float32, bfloat16 or float16")
    if device is not None and device.partition(":")[0] == "meta":
        raise ConfigError("a model on device 'meta' has no weights: choose cpu, cuda, cuda:1 …")
    quiet()
    import torch

    from heal.vlm import VLM, existing_device, torch_dtype

    if model == RANDOM:
        note("model: a tiny LLaVA with RANDOM weights. It is untrained, so its answers are meaningless.")
        vlm = VLM.random()
        vlm.model.to(None if device is None else existing_device(device), torch_dtype(dtype, torch.float32))
        return vlm
    if model == EMBEDDED:
        return VLM.embedded(dtype=torch_dtype(dtype, torch.float32), device=device)
    return VLM.load(model, dtype=dtype, device=device, allow_incomplete=allow_incomplete)


def quiet() -> None:
    """Disable progress bars and hints of other libraries."""
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


def detector_from(vlm: VLM, risk: bool, path: Path | None) -> Detector | None:
    """The detector that `--risk` and `--detector` ask for."""
    from heal.detect.model import as_detector

    return as_detector(path or risk, vlm.model)


def check_prompt(prompt: str) -> None:
    """Refuse prompts with invalid UTF-8, which Python turns into lone surrogates that tokenizers reject."""
    if any("\ud800" <= sign <= "\udfff" for sign in prompt):
        raise PromptError("the prompt is not text in UTF-8")


def check_writable(path: Path, what: str, *, folder: bool) -> None:
    """Check that the path can be written, before any work is done."""
    try:
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not folder and path.is_dir():
            raise ConfigError(f"{what} cannot be written to {path}: it is a folder")
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"{what} cannot be written to {path}: it is not an ordinary file")
        if not nearest.is_dir() and (folder or nearest != path):
            raise ConfigError(f"{what} cannot be written to {path}: {nearest} is not a folder")
        if not os.access(nearest, os.W_OK):
            raise ConfigError(f"{what} cannot be written to {path}: {nearest} is not writable")
    except OSError as error:
        raise ConfigError(f"{what} cannot be written to {path}: {error.strerror}") from error


def save_trace(trace: Trace, path: Path) -> None:
    try:
        trace.save(path)
    except OSError as error:
        raise TraceError(f"the trace cannot be written to {path}: {error.strerror}") from error
    note(f"trace: {path}")
