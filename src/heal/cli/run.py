"""`heal run`: answer a prompt about an image; --compare adds the answer of the unmodified model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.cli import common
from heal.cli.output import AsJson, emit, note
from heal.cli.risk import as_dict as risks
from heal.cli.risk import coloured, explain, marked
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.engine.answers import Sentence
    from heal.generate import Answer


def run(
    image: Annotated[str | None, typer.Argument(help="Path of an image. Default: run a demo.")] = None,
    prompt: Annotated[str | None, typer.Argument(help="The prompt.")] = None,
    model: common.Model = common.EMBEDDED,
    method: common.MethodText = "heal",
    alpha: common.Alpha = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also show the answer of the unmodified model.")] = False,
    risk: Annotated[
        bool, typer.Option("--risk", help="Mark the object words that are probably hallucinated, and say why.")
    ] = False,
    detector: Annotated[
        Path | None,
        typer.Option(help="The detector for --risk, written by `heal detect fit`. Default: that of the checkpoint."),
    ] = None,
    as_json: AsJson = False,
    trace: common.TracePath = None,
    patches: Annotated[
        bool,
        typer.Option("--patches", help="Also save where each head looks in the image (with --trace; one image)."),
    ] = False,
    max_new_tokens: common.MaxNewTokens = 64,
    out: Annotated[Path, typer.Option(help="Folder for the page of the demo.")] = Path("demo"),
    num_beams: Annotated[
        int, typer.Option(min=1, max=common.MOST_BEAMS, help="Number of beams for beam search.")
    ] = 1,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Answer a prompt about an image with a method. Without arguments: run a demo."""
    if image is None:
        from heal.cli.demo import announce, demo

        announce(method, out)
        return demo(None if (method, alpha) == ("heal", None) else common.method_from(method, alpha), out)
    if prompt is None:
        raise ConfigError("a prompt is missing: heal run IMAGE PROMPT")
    common.check_prompt(prompt)
    if patches and trace is None:
        raise ConfigError("--patches is a part of the trace: give --trace FILE too")
    if trace is not None:
        common.check_writable(trace, "the trace", folder=False)
    chosen = common.method_from(method, alpha)
    if num_beams > 1 and "num_beams" in chosen.generate_options():
        raise ConfigError(
            f"--num-beams {num_beams} conflicts with {chosen.name}, which sets it too: give one of them"
        )
    vlm = common.load(model, dtype, device, allow_incomplete)
    judge = common.detector_from(vlm, risk, detector)
    from heal.tracing import pieces as token_pieces

    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": False}
    options |= {"trace": "patches" if patches else trace is not None, "risk": judge}
    answer = vlm.generate(image, prompt, method=chosen, **options)
    plain = vlm.generate(image, prompt, **options) if compare else None
    traces = {} if trace is None else save_traces(trace, answer, plain)
    if as_json:
        found: dict[str, Any] = {"model": vlm.name, "method": chosen.name, "options": chosen.options()}
        found |= {"image": image, "prompt": prompt}
        for name, one in (("answer", answer), ("plain", plain)):
            if one is not None:
                pieces = {"tokens": list(token_pieces(vlm.tokenizer, one.token_ids))}
                found[name] = as_dict(one) | pieces | {"trace": traces.get(name)}
        return emit(found)
    colours = coloured()
    if plain is not None:
        print(f"plain: {marked(plain, colours)}")
    print(f"{chosen.name}:  {marked(answer, colours)}")
    note(describe(answer, plain))
    if answer.judged is not None:
        note(explain(answer.judged))


def save_traces(path: Path, answer: Answer, plain: Answer | None) -> dict[str, str]:
    """Save the trace of the answer, and that of the plain model beside it as *.plain.safetensors."""
    assert answer.trace is not None
    common.save_trace(answer.trace, path)
    if plain is None or plain.trace is None:
        return {"answer": str(path)}
    beside = path.with_suffix(f".plain{path.suffix}")
    common.save_trace(plain.trace, beside)
    return {"answer": str(path), "plain": str(beside)}


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
        **risks(answer.judged),
        **({"sentences": [dataclasses.asdict(s) for s in answer.sentences]} if answer.sentences else {}),
    }


def describe(answer: Answer, plain: Answer | None) -> str:
    """Describe what the method changed, in a line or two."""
    fired = answer.fired
    lines = []
    if fired:
        steps = max(len(answer.token_ids), answer.sentences[-1].stop if answer.sentences else 0)
        sizes = ", ".join(f"{name} {size:.2f}" for name, size in fired.sizes.items())
        lines.append(
            f"fired: {fired.changes} {'change' if fired.changes == 1 else 'changes'} in {fired.steps} of "
            f"{steps} steps" + (f"; mean size: {sizes}" if sizes else "")
        )
    elif fired is not None:
        lines.append(f"unchanged because {fired.reason}")
    lines += [_judgement(sentence) for sentence in answer.sentences if sentence.marked or sentence.tries]
    if plain is not None:
        same = "the same answer" if plain.token_ids == answer.token_ids else "a different answer"
        lines.append(f"compared with the plain model: {same}")
    return "\n".join(lines)


def _judgement(sentence: Sentence) -> str:
    """One line about a risky sentence, or one that was generated again."""
    done = "risky" if sentence.kept and sentence.marked else "kept" if sentence.kept else "left out"
    again = f" after {sentence.tries} {'try' if sentence.tries == 1 else 'tries'}" if sentence.tries else ""
    about = "" if sentence.risk is None else f" (risk {sentence.risk:.2f}: {sentence.word})"
    return f"{done}{again}{about}: {sentence.text}"
