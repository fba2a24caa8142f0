"""`heal eval`: run benchmarks with several methods in a resumable run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli import common
from heal.cli.output import AsJson, FormatOption, chosen_format, note
from heal.cli.progress import progress

if TYPE_CHECKING:
    from heal.bench.run.answering import Progress, Watch

FAILED = 4
"""Exit code of a run that finished with failed samples."""


def evaluate(
    task: Annotated[
        list[str], typer.Argument(help="Benchmarks with options, such as mini-pope:count=20. See `heal list tasks`.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run. It must not exist unless --resume is given.")],
    model: common.Model = common.EMBEDDED,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods with options, separated by commas or as repeated options: plain,heal:alpha=0.5,interval=5. "
            "`plain` is the unmodified model. The others are compared with the first. Default: plain,heal."
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of official data.")] = None,
    limit: common.Limit = None,
    seed: common.Seed = 0,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1, max=common.MOST_ROWS, help="Samples per batch; with do_sample=true each is answered alone."
        ),
    ] = 16,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=common.MOST_TOKENS, help="Maximum number of tokens of an answer. Default: set by the task."
        ),
    ] = None,
    generate: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Options of generate(): num_beams=3, do_sample=true …"),
    ] = None,
    prefix_cache: common.PrefixCache = False,
    skip_missing: Annotated[
        bool,
        typer.Option("--skip-missing", help="Skip samples whose images are missing; the tables report the number."),
    ] = False,
    resume: common.Resume = False,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Run benchmarks with several methods: figures with intervals, cost, and how often each method was active.

    Exit code 4 if the run finished but some samples failed. `accelerate launch -m heal eval …` distributes the work.
    """
    output = chosen_format(form, as_json)
    common.check_writable(out, "the run", folder=True)
    from heal.bench.run.names import methods_from, tasks_from
    from heal.bench.run.plan import select_samples
    from heal.bench.run.runner import Settings, run
    from heal.bench.run.shard import Shard
    from heal.bench.tasks.image_presence import samples_with_images
    from heal.cli.summary import print_summary
    from heal.engine.decoding import parse_options

    decoding = parse_options(generate or [])
    settings = Settings(limit, seed, batch_size, max_new_tokens, decoding, prefix_cache, skip_missing)
    if settings.sampled and batch_size > 1:
        note("sampling: each sample is answered alone with its own seed, so the batch size is ignored")
    methods, tasks = methods_from(method or ["plain,heal"]), tasks_from(task, data)
    samples_with_images(
        select_samples(tasks, limit), skip_missing
    )  # check before loading the model, which may take minutes
    shard = Shard.current()
    try:
        vlm = common.load(model, dtype, device or shard.device, allow_incomplete)
        with answer_progress(shard.main) as watch:
            summary = run(vlm, tasks, methods, out, settings, resume=resume, watch=watch, shard=shard)
    except KeyboardInterrupt:
        note(f"finished answers are in {out}: run the same command with --resume to continue")
        raise
    finally:
        shard.close()
    if not shard.main:
        return
    print_summary(summary, output)
    if summary.failed:
        raise typer.Exit(FAILED)


@contextmanager
def answer_progress(shown: bool) -> Iterator[Watch]:
    """Show the number of answers, their rate and the remaining time on standard error."""
    with progress("answers", shown) as report:

        def watch(now: Progress) -> None:
            failed = f", {now.failed} failed" if now.failed else ""
            report(f"{now.task}{failed}", now.done, now.total)

        yield watch
