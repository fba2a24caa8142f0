"""`heal compare`: methods side by side on the same samples, as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.common import (
    EMBEDDED,
    MOST_ROWS,
    MOST_SCENES,
    AllowIncomplete,
    Device,
    Dtype,
    Model,
    OldImages,
    PrefixCache,
    Seed,
    check_place,
    load,
)
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.studies.comparison import Line

KNOWN = ("pope", "chair", "mme")


def compare(
    out: Annotated[Path, typer.Option(help="The folder of the run, its table and its picture.")] = Path(
        "runs/compare"
    ),
    model: Model = EMBEDDED,
    tasks: Annotated[str, typer.Option(help="Any of pope, chair, mme, by commas.")] = "pope,chair,mme",
    methods: Annotated[
        str, typer.Option(help="`all`: every method with its published defaults. Or methods as in `heal eval`.")
    ] = "all",
    count: Annotated[
        int, typer.Option(min=1, max=MOST_SCENES, help="Pictures per task in the miniature world.")
    ] = 500,
    distribution: Annotated[str, typer.Option(help="Of the miniature world: natural or counter.")] = "natural",
    split: Annotated[str, typer.Option(help="Of the miniature world: test, or validation to choose with.")] = "test",
    data: Annotated[
        Path | None, typer.Option(help="The folder of official data, in the place of the miniature world.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many samples of each task.")] = None,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Samples answered at once.")] = 32,
    prefix_cache: PrefixCache = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the run in this folder.")] = False,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: Dtype = "auto",
    device: Device = None,
    allow_incomplete: AllowIncomplete = False,
    images: OldImages = None,
) -> None:
    """Quality, Recall, Length, yes-ratio, time and memory of methods on the same samples with the same decoding."""
    output = chosen_format(form, as_json)
    check_place(out, "the run", folder=True)
    from heal.bench.run.names import methods_from, tasks_from
    from heal.bench.run.plan import chosen as asked
    from heal.bench.run.runner import Settings, run
    from heal.bench.tasks.image_presence import with_images
    from heal.cli.evaluate import bar
    from heal.studies.comparison import cells, csv_rows, lines, markdown, published

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if unknown := [name for name in names if name not in KNOWN]:
        raise ConfigError(f"there is no task {unknown[0]!r} to compare on: choose from {', '.join(KNOWN)}")
    options = f"count={count},distribution={distribution},split={split}"
    texts = names if data is not None else [f"mini-{name}:{options}" for name in names]
    chosen = published() if methods == "all" else methods_from([methods])
    settings, made = Settings(limit, seed, batch_size, prefix_cache=prefix_cache), tasks_from(texts, data)
    with_images(asked(made, limit))  # before minutes are spent on loading the model
    vlm = load(model, dtype, device, allow_incomplete)
    with bar(True) as watch:
        summary = run(vlm, made, chosen, out, settings, resume=resume, watch=watch)
    table = lines(summary)
    write(table, out)
    if output is Format.json:
        return emit({"run": str(out), "rows": csv_rows(table)})
    if output is Format.csv:
        return emit_csv(csv_rows(table))
    if output is Format.md:
        print(markdown(table))
    else:
        show(Table(*cells(table)))
    say("differences to the first method in brackets; * its 95 % interval excludes zero")
    note(f"table: {out / 'table.md'}, {out / 'table.csv'}; picture: {out / 'quality-cost.png'}")


def write(table: list[Line], folder: Path) -> None:
    """The table as Markdown and CSV, and quality against cost as a picture."""
    import pandas as pd

    from heal.atomic_write import atomic_write
    from heal.plots.cost import panels, quality_against_cost
    from heal.plots.figure import save
    from heal.studies.comparison import csv_rows, markdown

    atomic_write(folder / "table.md", markdown(table))
    atomic_write(folder / "table.csv", pd.DataFrame(csv_rows(table)).to_csv(index=False))
    save(quality_against_cost(panels(table)), folder / "quality-cost.png")
