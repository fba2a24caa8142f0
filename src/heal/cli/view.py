"""`heal view`: an HTML page of an answer or a run, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heal.cli.common import check_writable
from heal.cli.output import note, say
from heal.errors import ConfigError

MOST_PATHS = 8
MB = 1_000_000


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE|RUN|ANSWER.json…",
            help="Traces of `heal run --trace`, outputs of `heal run --json`, or one folder of `heal eval` or "
            "`heal compare`. Several answers are shown side by side.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: beside the input, as *.view.html.")
    ] = None,
    objects: Annotated[
        str | None,
        typer.Option(help="Comma-separated objects that the picture shows: others in the text are marked."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=100_000, help="Samples of each task of a run to include.")] = 500,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one HTML file to look at an answer or a run. It needs no network and no other file."""
    from heal.view.load import check_one_kind, is_run

    if len(paths) > MOST_PATHS:
        raise ConfigError(f"{len(paths)} files are too many to compare: give at most {MOST_PATHS}")
    runs = [path for path in paths if is_run(path)]
    check_one_kind(runs, paths)
    target = out or (paths[0] / "view.html" if runs else paths[0].with_suffix(".view.html"))
    check_writable(target, "the page", folder=False)
    if runs and objects is not None:
        raise ConfigError("--objects belongs to answers: a run has its own reference")
    data = _run(runs[0], samples) if runs else _answers(paths, objects)
    _write(data, target)
    if open_page:
        import webbrowser

        if not webbrowser.open(target.resolve().as_uri()):
            note("no browser could be started: open the file yourself")


def _answers(paths: list[Path], objects: str | None) -> dict[str, Any]:
    from heal.view.load import answers_from

    names = None if objects is None else [name.strip() for name in objects.split(",") if name.strip()]
    return answers_from(paths, names)


def _run(path: Path, samples: int) -> dict[str, Any]:
    from heal.view.run import run_data

    return run_data(path, samples=samples)


def _write(data: dict[str, Any], target: Path) -> None:
    from heal.atomic_write import atomic_write
    from heal.view.page import page

    written = atomic_write(target, page(data))
    say(f"page: {written} ({written.stat().st_size / MB:.1f} MB)")
