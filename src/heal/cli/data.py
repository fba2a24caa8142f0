"""`heal data check`: report which official benchmark data is in a folder, and its versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, say, show
from heal.errors import DataError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inspect benchmark data.")


@app.callback()
def _data() -> None:
    """Inspect benchmark data."""


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A folder with official data, directly or in subfolders.")],
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """Report benchmarks, versions and the number of images in a folder. Exit code 2 if data is broken."""
    from dataclasses import asdict

    from heal.bench.tasks.data_folder import survey

    output = chosen_format(form, as_json)
    found = survey(folder)
    if not found:
        raise DataError(f"no benchmark data was recognised in {folder}; docs/benchmarks.md lists the files")
    rows = [asdict(finding) for finding in found]
    if output is Format.json:
        emit({"found": rows})
    elif output is Format.csv:
        emit_csv(rows)
    elif output is Format.md:
        cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
        show(Table([name.replace("_", " ") for name in rows[0]], cells), output)
    else:
        for f in found:
            place = "" if f.place == "." else f" in {f.place}"
            if f.problem:
                say(f"{f.task}{place}: broken: {f.problem}")
                continue
            images = "" if f.images is None else f"; {f.images} of {f.of_images} images"
            say(f"{f.task}{place}: {f.what}; version: {f.version}{images}")
    if any(f.problem for f in found):
        raise typer.Exit(2)
