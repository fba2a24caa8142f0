"""`heal calibrate`: the equilibrium of a model, measured on tokens that are known to be correct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.cli.common import (
    EMBEDDED,
    MOST_ROWS,
    MOST_SCENES,
    AllowIncomplete,
    Device,
    Dtype,
    MaxNewTokens,
    MethodText,
    Model,
    check_place,
    load,
)
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show
from heal.cli.progress import progress
from heal.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heal.studies.objects import Find, Labelled


def calibrate(
    model: Model = EMBEDDED,
    pictures: Annotated[
        Path | None,
        typer.Option(
            help='Lines of {"image": path, "objects": [COCO category, …]}. '
            "Default: the validation split of the miniature world."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_SCENES, help="The most pictures to use.")] = 200,
    out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("equilibrium.json"),
    method: MethodText = "heal",
    batch_size: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Pictures at a time.")] = 16,
    max_new_tokens: MaxNewTokens = 128,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: Dtype = "auto",
    device: Device = None,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Measure the mix of every head where the model is right, for heal:alpha=auto and heal:alpha=profile."""
    from heal.methods import HEAL, parse
    from heal.methods.equilibrium import FEWEST
    from heal.studies.own_mix import own_equilibrium

    output = chosen_format(form, as_json)
    check_place(out, "the equilibrium", folder=False)
    chosen = parse(method)
    if not isinstance(chosen, HEAL):
        raise ConfigError(f"an equilibrium belongs to heal, not to {chosen.name}")
    source, find, data = _source(pictures, limit)
    vlm = load(model, dtype, device, allow_incomplete)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        report("describing pictures", done, len(source))

    with progress("pictures") as report:
        report("describing pictures", 0, len(source))
        found = own_equilibrium(
            vlm,
            source,
            replace(chosen, calibrate=False),
            batch_size,
            max_new_tokens,
            find,
            data,
            advance,
        )
    try:
        found.save(out)
    except OSError as error:
        raise ConfigError(f"the equilibrium cannot be written to {out}: {error.strerror}") from error
    facts: dict[str, Any] = {
        "mean": found.mean,
        "heads_with_a_median": int((found.counts >= FEWEST).sum()),
        "heads": found.counts.size,
        "correct_names": found.source["correct_names"],
        "names": found.source["names"],
        "file": str(out),
    }
    if output is Format.json:
        return emit(facts)
    if output is Format.csv:
        return emit_csv([facts])
    if output is Format.md:
        return show(Table(("", "value"), [(name, str(value)) for name, value in facts.items()]), output)
    say(f"equilibrium: {found.mean:.3f}, the mean visual share of the synergy heads at correct names")
    say(f"measured at {facts['correct_names']} correct of {facts['names']} names in {len(source)} pictures ({data})")
    note(f"use it by --method heal:alpha=auto,profile={out} or heal:alpha=profile,profile={out}")


def _source(pictures: Path | None, limit: int) -> tuple[Sequence[Labelled], Find, str]:
    if pictures is not None:
        from heal.studies.own_mix import coco_finder, labelled_files

        return labelled_files(pictures)[:limit], coco_finder(), pictures.name
    from heal.world import World
    from heal.world.mentions import mentions

    world = World(0, "validation")
    return [world.scene(i) for i in range(limit)], mentions, "validation split of the miniature world, seed 0"
