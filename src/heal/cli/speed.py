"""`heal speed`: the cost of HEAL relative to the unmodified model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.common import MOST_ROWS, MethodText, load, method_from
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.speed import Speed


def speed(
    preset: Annotated[
        str | None,
        typer.Option(
            help="Dimensions of the random model: llava-1.5-7b (default) or qwen2.5-vl-7b. --count uses the embedded "
            "model without it."
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, max=256, help="Decoder layers of the random model.")] = 2,
    model: Annotated[
        str | None, typer.Option(help="Measure this checkpoint, or `embedded`, instead of a random model.")
    ] = None,
    method: MethodText = "heal",
    batch: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Batch size.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="Device of the model: cpu, cuda, cuda:1 …")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Number of torch threads.")] = 1,
    rounds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of rounds; each has `interval` steps per variant.")
    ] = 11,
    reference: Annotated[bool, typer.Option(help="Also measure the reference implementation (slow).")] = True,
    count: Annotated[
        bool,
        typer.Option("--count", help="Count launches, host synchronisations and bytes per token of every method."),
    ] = False,
    predict: Annotated[
        str | None,
        typer.Option(help="Predict the ratio on a GPU from counts: a100, h100, or custom with the next two options."),
    ] = None,
    launch_us: Annotated[float | None, typer.Option(help="Host time per launch in µs, for --predict.")] = None,
    bandwidth_gbs: Annotated[float | None, typer.Option(help="Memory bandwidth in GB/s, for --predict.")] = None,
    growth: Annotated[
        bool, typer.Option("--growth", help="Time and memory per token against context and batch, with fitted lines.")
    ] = False,
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """Measure the time of a decoding step: plain (sdpa) and the paths of HEAL (fast, fused, reference), interleaved.

    The fused path needs expected noise, which is the default, and Numba on a CPU or Triton on a GPU."""
    from heal.methods import HEAL

    output = chosen_format(form, as_json)
    chosen = method_from(method, None)
    if not isinstance(chosen, HEAL):
        raise ConfigError(f"heal speed compares implementations of heal, not {chosen.name}")
    if count + growth + (predict is not None) > 1:
        raise ConfigError("--count, --predict and --growth are different measurements: give one of them")
    if predict is None and (launch_us, bandwidth_gbs) != (None, None):
        raise ConfigError("launch-us and bandwidth-gbs describe a GPU for --predict: give --predict custom with them")
    from heal.cli.common import quiet
    from heal.devices import usable_device
    from heal.speed import Setup, measure
    from heal.vlm import torch_dtype

    quiet()
    usable_device(device)
    kind = torch_dtype(dtype)
    if isinstance(kind, str):
        raise ConfigError("dtype must be float32, bfloat16 or float16 here")
    if count or predict is not None or growth:
        from heal.cli import speed_extra

        if model is not None:
            raise ConfigError("--count, --predict and --growth use the embedded or a random model: leave --model out")
        if count:
            speed_extra.count(chosen, speed_extra.subject(preset, layers, batch, kind, device), output)
        elif device != "cpu":
            raise ConfigError("--predict and --growth run on the CPU: leave --device out")
        elif predict is not None:
            speed_extra.predict(speed_extra.device(predict, launch_us, bandwidth_gbs), chosen, output)
        else:
            speed_extra.growth(chosen, threads, output)
        return
    setup = Setup(preset or "llava-1.5-7b", layers, batch, kind, threads, rounds, chosen, reference, device)
    measured = load(model, dtype, device).model if model else None
    found = measure(setup, measured, progress=note)
    if output is Format.json:
        emit(found.to_dict())
    elif output is Format.csv:
        emit_csv(found.rows())
    else:
        _print(found, output)


def _print(s: Speed, output: Format) -> None:
    title = (
        f"{s.preset}, {s.layers} layers, batch {s.batch}, {s.dtype}, {s.device}, {s.threads} thread(s), "
        f"{s.rounds} rounds, a refresh every {s.interval} steps included"
    )
    rows = [
        (
            f"plain ({own.implementation})" if own.refresh_ms is None else f"HEAL, {own.implementation}",
            f"{own.ms:.1f}",
            "1" if own.refresh_ms is None else f"{own.ratio:.3f}  ({own.ratio_low:.3f} to {own.ratio_high:.3f})",
            "" if own.refresh_ms is None else f"{own.refresh_ms:.1f}",
            f"{own.prefill_ms:.0f} ({own.prefill_ratio:.3f})",
        )
        for own in s.arms
    ]
    headings = ("", "ms per step", "ratio to plain (quartiles)", "refresh ms", "prefill ms (ratio)")
    show(Table(headings, rows, title), output)
    for name, reason in s.skipped.items():
        say(f"HEAL, {name} was left out: {reason}")
    share = s.extra_bytes_per_layer / s.kv_bytes_per_layer
    say(
        f"state between steps: {s.extra_bytes_per_layer:,} bytes per layer ({share:.2%} of the KV cache); "
        f"peak workspace within a step: {s.workspace_bytes:,} bytes; calibrated heads: {s.calibrated_heads:.0%}"
    )
