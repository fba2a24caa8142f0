"""`heal compare`: compare methods on the same samples, as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli import common
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show
from heal.errors import ConfigError
from heal.extras import optional, require

if TYPE_CHECKING:
    from heal.studies.comparison import ComparisonRow

KNOWN = ("pope", "chair", "mme")


def compare(
    out: Annotated[Path, typer.Option(help="Folder of the run, the table and the plot.")] = Path("runs/compare"),
    model: common.Model = common.EMBEDDED,
    tasks: Annotated[str, typer.Option(help="Comma-separated list of pope, chair, mme.")] = "pope,chair,mme",
    methods: Annotated[
        str, typer.Option(help="`all` (every method with its published defaults), or methods as in `heal eval`.")
    ] = "all",
    count: Annotated[
        int, typer.Option(min=1, max=common.MOST_SCENES, help="Images per task in the miniature world.")
    ] = 500,
    distribution: Annotated[
        str, typer.Option(help="Distribution of the miniature world: natural or counter.")
    ] = "natural",
    split: Annotated[
        str, typer.Option(help="Split of the miniature world: test, or validation for choosing options.")
    ] = "test",
    data: Annotated[
        Path | None, typer.Option(help="Folder of official data, used instead of the miniature world.")
    ] = None,
    limit: common.Limit = None,
    seed: common.Seed = 0,
    batch_size: Annotated[int, typer.Option(min=1, max=common.MOST_ROWS, help="Samples per batch.")] = 32,
    prefix_cache: common.PrefixCache = False,
    resume: common.Resume = False,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
    images: common.OldImages = None,
) -> None:
    """Compare quality, recall, length, yes-ratio, time and memory of methods on the same samples."""
    output = chosen_format(form, as_json)
    common.check_writable(out, "the run", folder=True)
    require("matplotlib", "pandas")
    from heal.bench.run.names import methods_from, tasks_from
    from heal.bench.run.plan import select_samples
    from heal.bench.run.runner import Settings, run
    from heal.bench.tasks.image_presence import samples_with_images
    from heal.cli.evaluate import answer_progress
    from heal.studies.comparison import cells, comparison_rows, csv_rows, markdown, published

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if unknown := [name for name in names if name not in KNOWN]:
        raise ConfigError(f"unknown task {unknown[0]!r}: choose from {', '.join(KNOWN)}")
    options = f"count={count},distribution={distribution},split={split}"
    texts = names if data is not None else [f"mini-{name}:{options}" for name in names]
    chosen = published() if methods == "all" else methods_from([methods])
    settings, made = Settings(limit, seed, batch_size, prefix_cache=prefix_cache), tasks_from(texts, data)
    # check the images before loading the model, which may take minutes
    samples_with_images(select_samples(made, limit))
    vlm = common.load(model, dtype, device, allow_incomplete)
    with answer_progress(True) as watch:
        summary = run(vlm, made, chosen, out, settings, resume=resume, watch=watch)
    table = comparison_rows(summary)
    write(table, out)
    if output is Format.json:
        return emit({"run": str(out), "rows": csv_rows(table)})
    if output is Format.csv:
        return emit_csv(csv_rows(table))
    if output is Format.md:
        print(markdown(table))
    else:
        show(Table(*cells(table)))
    say("in brackets: differences to the first method; * marks 95 % intervals that exclude zero")
    note(f"table: {out / 'table.md'}, {out / 'table.csv'}; plot: {out / 'quality-cost.png'}")


def write(table: list[ComparisonRow], folder: Path) -> None:
    """Write the table as Markdown and CSV, and the plot of quality against cost."""
    with optional():
        import pandas as pd

    from heal.atomic_write import atomic_write
    from heal.plots.cost import panels, quality_against_cost
    from heal.plots.figure import save
    from heal.studies.comparison import csv_rows, markdown

    atomic_write(folder / "table.md", markdown(table))
    atomic_write(folder / "table.csv", pd.DataFrame(csv_rows(table)).to_csv(index=False))
    save(quality_against_cost(panels(table)), folder / "quality-cost.png")
