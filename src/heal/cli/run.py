"""`heal run`: one picture, one prompt, an answer; with --compare the plain model's too."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.cli.common import (
    EMBEDDED,
    MOST_BEAMS,
    AllowIncomplete,
    Alpha,
    Device,
    Dtype,
    MaxNewTokens,
    MethodText,
    Model,
    check_place,
    check_prompt,
    load,
    method_from,
    save_trace,
)
from heal.cli.output import AsJson, emit, note, say
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.generate import Answer


def run(
    image: Annotated[str | None, typer.Argument(help="Path of a picture. Without one, a demonstration runs.")] = None,
    prompt: Annotated[str | None, typer.Argument(help="What to ask.")] = None,
    model: Model = EMBEDDED,
    method: MethodText = "heal",
    alpha: Alpha = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show the plain model's answer too.")] = False,
    as_json: AsJson = False,
    trace: Annotated[Path | None, typer.Option(help="Save what was measured to this .safetensors file.")] = None,
    max_new_tokens: MaxNewTokens = 64,
    out: Annotated[Path, typer.Option(help="Where the demonstration puts its pictures.")] = Path("demo"),
    num_beams: Annotated[int, typer.Option(min=1, max=MOST_BEAMS, help="Beam search with so many beams.")] = 1,
    dtype: Dtype = "auto",
    device: Device = None,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Ask a model about a picture, with a method at work. Without arguments: a demonstration."""
    if image is None:
        from heal.cli.demo import announce, demo

        announce(method, out)
        return demo(None if (method, alpha) == ("heal", None) else method_from(method, alpha), out)
    if prompt is None:
        raise ConfigError("a prompt is missing: heal run IMAGE PROMPT")
    check_prompt(prompt)
    if trace is not None:
        check_place(trace, "the trace", folder=False)
    chosen = method_from(method, alpha)
    if num_beams > 1 and "num_beams" in chosen.generate_options():
        raise ConfigError(f"--num-beams {num_beams} contradicts {chosen.name}, which has its own: give one of them")
    vlm = load(model, dtype, device, allow_incomplete)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": False}
    answer = vlm.generate(image, prompt, method=chosen, trace=trace is not None, **options)
    plain = vlm.generate(image, prompt, **options) if compare else None
    if trace is not None:
        assert answer.trace is not None
        save_trace(answer.trace, trace)
    if as_json:
        found: dict[str, Any] = {"model": vlm.name, "method": chosen.name, "options": chosen.options()}
        found |= {"answer": as_dict(answer)} | ({"plain": as_dict(plain)} if plain else {})
        return emit(found)
    if plain is not None:
        say(f"plain: {plain.text}")
    say(f"{chosen.name}:  {answer.text}")
    note(describe(answer, plain))


def as_dict(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "token_ids": list(answer.token_ids),
        "logprobs": list(answer.logprobs),
        "finish": answer.finish,
        "prompt_tokens": answer.prompt_tokens,
        "seconds": answer.seconds,
        "first_token_seconds": answer.first_token_seconds,
        "fired": None if answer.fired is None else dataclasses.asdict(answer.fired),
    }


def describe(answer: Answer, plain: Answer | None) -> str:
    """Whether the method did anything, in a line or two."""
    fired = answer.fired
    lines = []
    if fired:
        lines.append(
            f"fired: {fired.changes} changes in {fired.steps} of {len(answer.token_ids)} steps; mean size: "
            + ", ".join(f"{name} {size:.2f}" for name, size in fired.sizes.items())
        )
    elif fired is not None:
        lines.append(f"nothing was changed: {fired.reason}")
    if plain is not None:
        same = "the same answer" if plain.token_ids == answer.token_ids else "another answer"
        lines.append(f"compared with the plain model: {same}")
    return "\n".join(lines)
