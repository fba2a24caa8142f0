"""`heal study`: measure the tables and figures of the paper on any model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.cli import common
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show
from heal.cli.progress import progress
from heal.errors import ConfigError, DataError, HealError

if TYPE_CHECKING:
    from heal.studies.running import Watch
    from heal.studies.setup import Setup
    from heal.studies.study import Report, Study
    from heal.vlm import VLM

LIST = "list"
ALL = "all"
BOTH = "both"
SMALL_MODEL_BATCH, BATCH = 64, 16
"""Default batch sizes of the embedded model and of others."""


def study(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Names of studies, all, or list to describe them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the results. An interrupted study continues. Not needed for list and --plan."),
    ] = None,
    model: common.Model = common.EMBEDDED,
    data: Annotated[Path | None, typer.Option(help="Folder of official data. Default: the miniature world.")] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=common.MOST_SCENES,
            help="Images per benchmark and distribution. Default: 100 in the miniature world, all of official data.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the miniature world: validation or test.")] = "test",
    distribution: Annotated[
        str, typer.Option(help="Scenes of the miniature world: natural, counter or both.")
    ] = "natural",
    method: Annotated[
        list[str] | None,
        typer.Option(help="Methods instead of those of the paper, as for `heal eval`: heal:preset=paper …"),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of `heal eval` whose answers are reused where model, samples and method are equal."
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Tell what is missing, how many samples, and how long, without measuring.")
    ] = False,
    seed: common.Seed = 0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=common.MOST_ROWS,
            help="Samples per batch. Default: 64 with the embedded model, 16 with others.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=common.MOST_TOKENS, help="Maximum number of tokens of an answer. Default: set by the task."
        ),
    ] = None,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Measure tables and figures of the paper on a model: a table, a figure and a verdict for each study.

    `heal study list` describes the studies, `heal study all` makes all of them. The same command continues an
    interrupted one. `accelerate launch -m heal study …` distributes the work.
    """
    output = chosen_format(form, as_json)
    from heal.studies.study import available, named

    if names == [LIST]:
        return _print_list(list(available().values()), output)
    chosen = named(names)
    setup = _setup(model, data, samples, split, distribution, method, seed, batch_size, max_new_tokens)
    if plan:
        return _print_plan(names, chosen, setup, _loaded_or_none(model, dtype, device), output)
    if out is None:
        raise ConfigError("--out is missing: give a folder for the results")
    common.check_writable(out, "the studies", folder=True)
    chosen = _with_data(chosen, setup, leave_out=names == [ALL])
    from heal.bench.run.shard import Shard
    from heal.extras import require
    from heal.studies.running import StudyRunner

    require("matplotlib", "scipy")
    shard = Shard.current()
    try:
        vlm = common.load(model, dtype, device or shard.device, allow_incomplete)
        with _watching(shard.main) as watch:
            runner = StudyRunner(vlm, out, tuple(records or ()), shard, watch)
            reports = {study.name: runner.study(study, setup) for study in chosen}
    except KeyboardInterrupt:
        note(f"what was measured is in {out}: run the same command again to continue")
        raise
    finally:
        shard.close()
    if shard.main:
        _print_reports(reports, out, output)


def _setup(
    model: str,
    data: Path | None,
    samples: int | None,
    split: str,
    distribution: str,
    method: Sequence[str] | None,
    seed: int,
    batch_size: int | None,
    max_new_tokens: int | None,
) -> Setup:
    from heal.bench.run.names import methods_from
    from heal.studies.setup import Setup
    from heal.world.world import DISTRIBUTIONS

    return Setup.on(
        data,
        model=model,
        samples=samples,
        split=split,
        distributions=tuple(DISTRIBUTIONS) if distribution == BOTH else (distribution,),
        methods=methods_from(method) if method else {},
        seed=seed,
        batch_size=batch_size or (SMALL_MODEL_BATCH if model == common.EMBEDDED else BATCH),
        max_new_tokens=max_new_tokens,
    )


def _with_data(studies: Sequence[Study], setup: Setup, leave_out: bool) -> list[Study]:
    """The studies whose data is there. The others are an error before a model is loaded, or are left out."""
    missing = {study.name: reason for study in studies if (reason := study.missing(setup))}
    found = [study for study in studies if study.name not in missing]
    if missing and not (leave_out and found):
        raise DataError(f"{next(iter(missing))}: {next(iter(missing.values()))}")
    for name, reason in missing.items():
        note(f"{name} is left out: {reason}")
    return found


@contextmanager
def _watching(shown: bool) -> Iterator[Watch]:
    with progress("answers", shown) as report:
        yield report


def _print_reports(reports: dict[str, Report], out: Path, output: Format) -> None:
    from heal.studies.output import cells, flat_rows

    if output is Format.json:
        return emit(
            {
                name: {
                    "verdicts": [{"claim": v.claim, "outcome": v.outcome, "text": v.text} for v in report.verdicts],
                    "rows": flat_rows(report.tables[0]) if report.tables else [],
                    "folder": str(out / name),
                }
                for name, report in reports.items()
            }
        )
    for name, report in reports.items():
        if output is Format.csv:
            first = [{"study": name, **row} for table in report.tables[:1] for row in flat_rows(table)]
            if first:
                emit_csv(first)
            continue
        for table in report.tables if len(reports) == 1 else ():
            headings, rows = cells(table)
            if rows:  # none if nothing could be measured
                leading = len(table.rows[0].labels)
                show(Table(headings, rows, f"{name}: {table.title or table.name}", leading), output)
        for verdict in report.verdicts:
            say(f"{name}: {verdict.text}")
        note(f"{name}: tables, figures and verdict are in {out / name}")


# ── list and plan ─────────────────────────────────────────────────────────────────────────────────────────


def _print_list(studies: Sequence[Study], output: Format) -> None:
    from heal.studies.planning import cost_line

    rows = [
        {"study": s.name, "shows": s.summary, "paper": s.paper, "cost": cost_line(s), "data": ", ".join(s.data)}
        for s in studies
    ]
    if output is Format.json:
        return emit({"studies": rows})
    if output is Format.csv:
        return emit_csv(rows)
    if output is Format.md:
        return show(Table(list(rows[0]), [list(row.values()) for row in rows]), output)
    for row in rows:
        say(f"{row['study']:16}{row['shows']} ({row['paper']}); {row['cost']}")


def _loaded_or_none(model: str, dtype: str, device: str | None) -> VLM | str:
    """The model, or why it cannot be loaded."""
    try:
        return common.load(model, dtype, device)
    except HealError as error:
        return str(error)


def _print_plan(names: Sequence[str], studies: Sequence[Study], setup: Setup, vlm: VLM | str, output: Format) -> None:
    from heal.studies import planning

    missing = vlm if isinstance(vlm, str) else ""
    wanted = planning.wanted(studies, setup)
    speed = (
        planning.predicted_speed(setup.model, setup)
        if isinstance(vlm, str)
        else planning.measured_speed(vlm, setup, planning.methods_of(wanted))
    )
    parts = planning.planned(wanted, speed)
    hours, launch = planning.total_hours(parts), planning.command(names, _arguments(setup))
    rows: list[dict[str, Any]] = [
        {
            "study": p.study,
            "part": p.part,
            "samples": p.samples,
            "answers": p.answers,
            "tokens": p.tokens,
            "hours": p.hours,
            "problem": p.problem,
        }
        for p in parts
    ]
    if output is Format.json:
        return emit({"parts": rows, "hours": hours, "speed": speed.source, "model": missing, "command": launch})
    if output is Format.csv:
        return emit_csv(rows)
    if missing:
        say(f"model: {missing}")
    shown = [[*(str(v) for v in list(r.values())[:5]), _time(r["hours"])] for r in rows if r["part"]]
    show(Table(("study", "part", "samples", "answers", "tokens up to", "time up to"), shown, leading=2), output)
    for row in rows:
        if row["problem"]:
            say(f"{row['study']}{', ' * bool(row['part'])}{row['part']}: {row['problem']}")
    say(f"up to {_time(hours)} in all ({speed.source})")
    say(f"on several GPUs: {launch}")


def _time(hours: float) -> str:
    if math.isnan(hours):
        return "unknown"
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"


def _arguments(setup: Setup) -> list[str]:
    from heal.bench.run.names import method_name
    from heal.studies.setup import OFFICIAL

    found = [f"--model {setup.model}"]
    found += [f"--data {setup.data}"] if setup.data else []
    found += [f"--samples {setup.samples}"] if setup.samples else []
    if setup.data is None:
        found += [f"--split {setup.split}"] if setup.split != "test" else []
        chosen = BOTH if len(setup.distributions) > 1 else setup.distributions[0]
        found += [f"--distribution {chosen}"] if chosen not in ("natural", OFFICIAL) else []
    found += [f"--method {method_name(method)}" for method in setup.methods.values()]
    return [*found, f"--batch-size {setup.batch_size}", "--out OUT"]
