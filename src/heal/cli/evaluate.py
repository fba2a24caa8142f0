"""`heal eval`: benchmarks with several methods, in a run folder that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.common import (
    EMBEDDED,
    MOST_ROWS,
    MOST_TOKENS,
    AllowIncomplete,
    Device,
    Dtype,
    Model,
    PrefixCache,
    Seed,
    check_place,
    load,
)
from heal.cli.output import AsJson, FormatOption, chosen_format, note
from heal.cli.progress import progress

if TYPE_CHECKING:
    from heal.bench.run.answering import Progress, Watch

FAILED = 4
"""Exit code of a run that finished, but in which some samples failed."""


def evaluate(
    task: Annotated[
        list[str], typer.Argument(help="Benchmarks, with options as mini-pope:count=20. See `heal list tasks`.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of this run. It must be new, or resumed.")],
    model: Model = EMBEDDED,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods with their options, by commas or again: plain,heal:alpha=0.5,interval=5. `plain` is the "
            "model as it is; the others are compared with the first. Default: plain,heal."
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of official data.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many samples of each task.")] = None,
    seed: Seed = 0,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_ROWS, help="Samples answered at once; with do_sample=true each is answered alone."
        ),
    ] = 16,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_TOKENS, help="The most tokens of an answer. Default: as each task has it."),
    ] = None,
    generate: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of generate(): num_beams=3, do_sample=true …")
    ] = None,
    prefix_cache: PrefixCache = False,
    skip_missing: Annotated[
        bool,
        typer.Option("--skip-missing", help="Leave out samples whose images are missing; the tables say how many."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the run in this folder.")] = False,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: Dtype = "auto",
    device: Device = None,
    allow_incomplete: AllowIncomplete = False,
) -> None:
    """Answer benchmarks with several methods: figures with intervals, cost, and whether a method did anything.

    Exit code 4 if the run finished but some samples failed. `accelerate launch -m heal eval …` shares the work.
    """
    output = chosen_format(form, as_json)
    check_place(out, "the run", folder=True)
    from heal.bench.run.names import methods_from, tasks_from
    from heal.bench.run.plan import chosen
    from heal.bench.run.runner import Settings, run
    from heal.bench.run.shard import Shard
    from heal.bench.tasks.image_presence import with_images
    from heal.cli.summary import print_summary
    from heal.engine.decoding import parse_options

    decoding = parse_options(generate or [])
    settings = Settings(limit, seed, batch_size, max_new_tokens, decoding, prefix_cache, skip_missing)
    if settings.sampled and batch_size > 1:
        note("sampling: each sample is answered alone, from a seed of its own, so the batch size does not matter")
    methods, tasks = methods_from(method or ["plain,heal"]), tasks_from(task, data)
    with_images(chosen(tasks, limit), skip_missing)  # before minutes are spent on loading the model
    shard = Shard.current()
    try:
        vlm = load(model, dtype, device or shard.device, allow_incomplete)
        with bar(shard.main) as watch:
            summary = run(vlm, tasks, methods, out, settings, resume=resume, watch=watch, shard=shard)
    except KeyboardInterrupt:
        note(f"what was answered is in {out}: the same command with --resume goes on")
        raise
    finally:
        shard.close()
    if not shard.main:
        return
    print_summary(summary, output)
    if summary.failed:
        raise typer.Exit(FAILED)


@contextmanager
def bar(shown: bool) -> Iterator[Watch]:
    """Answers made, their rate and the time left, on standard error."""
    with progress("answers", shown) as report:

        def watch(now: Progress) -> None:
            failed = f", {now.failed} failed" if now.failed else ""
            report(f"{now.task}{failed}", now.done, now.total)

        yield watch
