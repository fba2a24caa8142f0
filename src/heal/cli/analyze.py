"""`heal analyze`: what kind of heads a model uses for one answer, without changing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from heal.cli.common import (
    EMBEDDED,
    Alpha,
    AsJson,
    Device,
    Dtype,
    MaxNewTokens,
    MethodText,
    Model,
    emit,
    load,
    method_from,
    save_trace,
)
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.trace import Trace

LETTERS = {0: "c", 1: "i", 2: "V", 3: "L", 4: "S", 255: "?"}
LEGEND = "V visual, L language, S synergy, c causally redundant, i information redundant, ? not analysed"


def analyze(
    image: Annotated[str, typer.Argument(help="Path of a picture.")],
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    model: Model = EMBEDDED,
    method: MethodText = "heal",
    alpha: Alpha = None,
    as_json: AsJson = False,
    trace: Annotated[Path | None, typer.Option(help="Save what was measured to this .safetensors file.")] = None,
    max_new_tokens: MaxNewTokens = 64,
    dtype: Dtype = "auto",
    device: Device = None,
) -> None:
    """Measure the heads while the plain model answers: types, information, drift token by token."""
    from dataclasses import replace

    from heal.methods import HEAL

    chosen = method_from(method, alpha)
    if not isinstance(chosen, HEAL):
        raise ConfigError(f"only heal analyses heads, not {chosen.name}")
    vlm = load(model, dtype, device)
    measured = replace(chosen, calibrate=False)
    answer = vlm.generate(image, prompt, method=measured, trace=True, max_new_tokens=max_new_tokens, do_sample=False)
    if trace is not None:
        save_trace(answer.trace, trace)
    if as_json:
        return emit(summary(answer.trace))
    print(f"answer: {answer.text}")
    print_map(answer.trace)
    print_tokens(answer.trace)


def summary(trace: Trace) -> dict[str, Any]:
    return {
        "text": trace.text,
        "tokens": list(trace.tokens),
        "alpha_vis": [float(x) for x in trace.mean_alpha()],
        "types": trace.types[0].tolist() if trace.steps else [],
        "counts": counts(trace),
        "config": trace.config,
        "versions": trace.versions,
    }


def counts(trace: Trace) -> dict[str, int]:
    """Heads of each type at the first token."""
    from heal.analysis.taxonomy import HeadType

    first = trace.types[0] if trace.steps else np.zeros(0, np.uint8)
    return {kind.label: int((first == int(kind)).sum()) for kind in HeadType}


def print_map(trace: Trace) -> None:
    """One line a layer, one letter a head, at the first token."""
    if not trace.steps:
        return
    print(f"head types at the first token ({LEGEND}):")
    share = trace.alpha_vis[0]
    for layer, types in enumerate(trace.types[0]):
        mixed = share[layer][(types == 4) & ~np.isnan(share[layer])]
        mean = f"{mixed.mean():.2f}" if mixed.size else " –  "
        print(f"  layer {layer:2d}  {''.join(LETTERS[int(t)] for t in types)}  α_vis of synergy heads {mean}")


def print_tokens(trace: Trace) -> None:
    print("visual share of the synergy heads, token by token:")
    for token, share in zip(trace.tokens, trace.mean_alpha(), strict=True):
        bar = "" if np.isnan(share) else "█" * round(30 * float(share))
        print(f"  {share:5.2f} {bar:30s} {token.strip()}")
