"""`heal analyze`: head types and information of one answer of the unmodified model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.cli import common
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, say, show
from heal.errors import ConfigError
from heal.escape import one_line

if TYPE_CHECKING:
    from heal.trace import Trace

LETTERS = {0: "c", 1: "i", 2: "V", 3: "L", 4: "S", 255: "?"}
SYNERGY = 4
LEGEND = "V visual, L language, S synergy, c causally redundant, i information redundant, ? not analysed"


def analyze(
    image: Annotated[str, typer.Argument(help="Path of an image.")],
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    model: common.Model = common.EMBEDDED,
    method: common.MethodText = "heal",
    alpha: common.Alpha = None,
    form: FormatOption = None,
    as_json: AsJson = False,
    trace: common.TracePath = None,
    max_new_tokens: common.MaxNewTokens = 64,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Analyse the attention heads while the unmodified model answers: head types and visual share per token."""
    from dataclasses import replace

    from heal.methods import HEAL

    output = chosen_format(form, as_json)
    common.check_prompt(prompt)
    if trace is not None:
        common.check_writable(trace, "the trace", folder=False)
    chosen = common.method_from(method, alpha)
    if not isinstance(chosen, HEAL):
        raise ConfigError(f"head analysis needs the method heal, not {chosen.name}")
    vlm = common.load(model, dtype, device, allow_incomplete)
    measured = replace(chosen, calibrate=False)
    answer = vlm.generate(image, prompt, method=measured, trace=True, max_new_tokens=max_new_tokens, do_sample=False)
    if trace is not None:
        common.save_trace(answer.trace, trace)
    if output is Format.json:
        emit(summary(answer.trace))
    elif output is Format.csv:
        emit_csv(rows(answer.trace))
    elif output is Format.md:
        show(layer_table(answer.trace), output)
        show(token_table(answer.trace), output)
    else:
        say(f"answer: {answer.text}")
        print_map(answer.trace)
        print_tokens(answer.trace)


def summary(trace: Trace) -> dict[str, Any]:
    return {
        "text": trace.text,
        "tokens": list(trace.tokens),
        "alpha_vis": [float(x) for x in trace.mean_alpha()],
        "parts_of_total": [[float(x) for x in pair] for pair in trace.mean_parts()],
        "types": trace.types[0].tolist() if trace.steps else [],
        "counts": counts(trace),
        "config": trace.config,
        "versions": trace.versions,
    }


def counts(trace: Trace) -> dict[str, int]:
    """Number of heads of each type at the first token."""
    from heal.analysis.taxonomy import HeadType

    first = trace.types[0].ravel().tolist() if trace.steps else []
    return {kind.label: first.count(int(kind)) for kind in HeadType}


def rows(trace: Trace) -> Iterator[dict[str, Any]]:
    """Type and visual share of every head at every token."""
    from heal.analysis.taxonomy import HeadType

    labels = {int(kind): kind.label for kind in HeadType}
    for step, token in enumerate(trace.tokens):
        for layer, types in enumerate(trace.types[step].tolist()):
            for head, kind in enumerate(types):
                share = float(trace.alpha_vis[step][layer][head])
                place = {"step": step, "token": token, "layer": layer, "head": head}
                yield place | {"type": labels[kind], "alpha_vis": share}


def layers(trace: Trace) -> list[tuple[str, str, str]]:
    """For each layer at the first token: its index, one letter per head, and the mean α_vis of its synergy heads."""
    import numpy as np

    found = []
    for layer, types in enumerate(trace.types[0] if trace.steps else ()):
        share = trace.alpha_vis[0][layer]
        mixed = share[(types == SYNERGY) & ~np.isnan(share)]
        letters = "".join(LETTERS[int(kind)] for kind in types)
        found.append((str(layer), letters, f"{mixed.mean():.2f}" if mixed.size else "–"))
    return found


def layer_table(trace: Trace) -> Table:
    title = f"{trace.text} – head types at the first token ({LEGEND})"
    return Table(("layer", "heads", "α_vis of synergy heads"), layers(trace), title)


def token_table(trace: Trace) -> Table:
    measured = zip(trace.tokens, trace.mean_alpha(), trace.mean_parts(), strict=True)
    cells = [
        (token.strip(), f"{share:.2f}", f"{visual:.2f}", f"{language:.2f}")
        for token, share, (visual, language) in measured
    ]
    return Table(("token", "α_vis", "I_vis / I_total", "I_lang / I_total"), cells, "synergy heads, per token")


def print_map(trace: Trace) -> None:
    """Print one line per layer with one letter per head, at the first token."""
    if not trace.steps:
        return
    say(f"head types at the first token ({LEGEND}):")
    for layer, letters, mean in layers(trace):
        say(f"  layer {layer:>2s}  {letters}  α_vis of synergy heads {mean}")


def print_tokens(trace: Trace) -> None:
    say("synergy heads per token: visual share, and I_vis : I_lang in parts of I_total")
    measured = zip(trace.tokens, trace.mean_alpha().tolist(), trace.mean_parts().tolist(), strict=True)
    for token, share, (visual, language) in measured:
        bar = "" if share != share else "█" * round(30 * share)
        say(f"  {share:5.2f} {visual:5.2f}:{language:4.2f} {bar:30s} {one_line(token)}")
