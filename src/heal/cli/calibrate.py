"""`heal calibrate`: measure the equilibrium of a model at correctly named objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.cli import common
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show
from heal.cli.progress import progress
from heal.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heal.cli.progress import Report
    from heal.methods.equilibrium import Equilibrium
    from heal.studies.objects import Find, Labelled


def calibrate(
    model: common.Model = common.EMBEDDED,
    pictures: Annotated[
        Path | None,
        typer.Option(
            help='JSON Lines of {"image": path, "objects": [COCO category, …]}. '
            "Default: the validation split of the miniature world."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=common.MOST_SCENES, help="Maximum number of images.")] = 200,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("equilibrium.json"),
    method: common.MethodText = "heal",
    batch_size: Annotated[int, typer.Option(min=1, max=common.MOST_ROWS, help="Images per batch.")] = 16,
    max_new_tokens: common.MaxNewTokens = 128,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Measure the visual share of every head at correct object names, for heal:alpha=auto and heal:alpha=profile."""
    from heal.methods import HEAL, parse
    from heal.studies.equilibrium import measure_equilibrium

    output = chosen_format(form, as_json)
    common.check_writable(out, "the equilibrium", folder=False)
    chosen = parse(method)
    if not isinstance(chosen, HEAL):
        raise ConfigError(f"only heal has an equilibrium, not {chosen.name}")
    source, find, data = _source(pictures, limit)
    vlm = common.load(model, dtype, device, allow_incomplete)
    measured = replace(chosen, calibrate=False)
    with progress("images") as report:
        images = _reported(source, report)
        found = measure_equilibrium(vlm, images, measured, batch_size, max_new_tokens, find, data)
    try:
        found.save(out)
    except OSError as error:
        raise ConfigError(f"the equilibrium cannot be written to {out}: {error.strerror}") from error
    _print(found, out, f"{len(source)} images ({data})", output)


def _reported(source: Sequence[Labelled], report: Report) -> Iterator[Labelled]:
    """The images, with a progress report for each one taken."""
    report("describing images", 0, len(source))
    for done, image in enumerate(source, 1):
        report("describing images", done, len(source))
        yield image


def _print(found: Equilibrium, out: Path, data: str, output: Format) -> None:
    from heal.methods.equilibrium import FEWEST

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
    say(f"equilibrium: {found.mean:.3f}, the mean visual share of the synergy heads at correctly named objects")
    say(f"measured at {facts['correct_names']} correct names of {facts['names']} in {data}")
    note(f"use it with --method heal:alpha=auto,profile={out} or heal:alpha=profile,profile={out}")


def _source(pictures: Path | None, limit: int) -> tuple[Sequence[Labelled], Find, str]:
    if pictures is not None:
        from heal.bench.tasks.labelled_files import labelled_files
        from heal.studies.equilibrium import coco_finder

        return labelled_files(pictures)[:limit], coco_finder(), pictures.name
    from heal.world import World
    from heal.world.mentions import mentions

    world = World(0, "validation")
    return [world.scene(i) for i in range(limit)], mentions, "validation split of the miniature world, seed 0"
