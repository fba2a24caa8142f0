"""`heal data check`: what a folder of official benchmark data holds, and which version it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heal.cli.common import AsJson, emit
from heal.errors import DataError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at benchmark data.")


@app.callback()
def _data() -> None:
    """Look at benchmark data."""


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A folder with official data, in it or in folders below.")],
    as_json: AsJson = False,
) -> None:
    """Say what is found, which version it is, and how many of its images are there. Exit code 2 if some is broken."""
    from dataclasses import asdict

    from heal.bench.survey import survey

    found = survey(folder)
    if not found:
        raise DataError(f"no benchmark data was recognised in {folder}; docs/benchmarks.md lists the files")
    if as_json:
        emit({"found": [asdict(finding) for finding in found]})
    else:
        for f in found:
            place = "" if f.place == "." else f" in {f.place}"
            if f.problem:
                print(f"{f.task}{place}: broken: {f.problem}")
                continue
            images = "" if f.images is None else f"; {f.images} of {f.of_images} images"
            print(f"{f.task}{place}: {f.what}; version: {f.version}{images}")
    if any(f.problem for f in found):
        raise typer.Exit(2)
