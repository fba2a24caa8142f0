"""`heal report`: the results of the embedded model, run by run, as one document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.common import EMBEDDED, MOST_ROWS, MOST_SCENES, OldImages, check_place, load
from heal.cli.output import note, say
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.bench.score.summary import Summary
    from heal.report.plans import Plan
    from heal.vlm import VLM


NONE = "none"
PARTS = ("premise", "validation", "natural", "counter", "methods")


def report(
    subject: Annotated[str, typer.Argument(help="What to report on: embedded.")] = EMBEDDED,
    out: Annotated[Path, typer.Option(help="The folder of the runs; a stopped report goes on where it was.")] = Path(
        "runs/embedded"
    ),
    to: Annotated[Path, typer.Option(help="The document to write.")] = Path("docs/results.md"),
    count: Annotated[int, typer.Option(min=1, max=MOST_SCENES, help="Test pictures of each distribution.")] = 1000,
    fewer: Annotated[
        int, typer.Option(min=1, max=MOST_SCENES, help="Test pictures for controls and other methods.")
    ] = 500,
    validation: Annotated[int, typer.Option(min=1, max=MOST_SCENES, help="Validation pictures.")] = 300,
    batch_size: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Samples answered at once.")] = 128,
    parts: Annotated[
        str,
        typer.Option(
            help="Which runs to make, by commas, so that several processes can share a report; none to write the "
            "document again. It tells what has been measured so far, here or earlier, of this very model."
        ),
    ] = ",".join(PARTS),
    images: OldImages = None,
) -> None:
    """Measure the plain model, HEAL in all its forms and its rivals on the embedded model, and write it down.

    What is beside the document already, of this very model, is not measured again: delete it there to have it anew.
    """
    from heal.atomic_write import atomic_write
    from heal.bench.run.environment import weights_fingerprint
    from heal.methods import HEAL
    from heal.plots.cost import panels, quality_against_cost
    from heal.plots.figure import save
    from heal.plots.trade import curves, trade_off
    from heal.report import plans
    from heal.report.document import DRAWINGS, document, gather, premise, premise_file, write_premise
    from heal.report.stored_results import SUFFIX, kept
    from heal.studies.comparison import lines

    if subject != EMBEDDED:
        raise ConfigError(f"there is no report on {subject!r}: only embedded")
    wanted = wanted_parts(parts)
    check_place(out, "the runs", folder=True)
    check_place(to, "the document", folder=False)
    vlm = load(EMBEDDED, "auto", None)

    figures, weights = to.with_suffix(""), weights_fingerprint(vlm.model)

    def done(plan: Plan) -> Summary:
        """Measured now, or before on this very model."""
        there = kept(figures / f"{plan.name}{SUFFIX}")
        if there is not None and there.weights == weights and there.answers(plan.made_tasks(), plan.methods):
            return there.summary
        return _run(vlm, plan, out, batch_size)

    def chosen() -> HEAL:
        best = plans.chosen_form(done(plans.choice(validation)))
        note(f"chosen on the validation split: {best}")
        method = plans.equilibria()[best]
        assert isinstance(method, HEAL)
        return method

    if "premise" in wanted:
        for distribution in ("natural", "counter"):
            drift = premise(vlm, "validation", distribution, validation)
            write_premise(drift, premise_file(figures, distribution))
    if "validation" in wanted:
        done(plans.safety(validation))
        done(plans.choice(validation))
    for distribution in (d for d in ("natural", "counter") if d in wanted):
        done(plans.result(distribution, count))
        done(plans.questions(distribution, count))
        done(plans.controls(distribution, fewer, chosen()))
    if "methods" in wanted:
        settings = plans.tuned(done(plans.tuning(validation)))
        done(plans.rivals("natural", fewer, None))
        done(plans.rivals("natural", fewer, settings))
    found = gather(out, figures, weights)
    if not found.runs and not found.drifts:
        raise ConfigError(f"nothing has been measured yet, neither in {out} nor in {figures}: leave --parts out")
    drawn = {"published-natural": lambda t: quality_against_cost(panels(t)), "tuning": lambda t: trade_off(curves(t))}
    for name, (file, _) in DRAWINGS.items():
        if name in found.runs:
            save(drawn[name](lines(found.runs[name].summary)), figures / file)
    atomic_write(to, document(found))
    say(f"written: {to}, with every figure in {figures}")


def wanted_parts(text: str) -> list[str]:
    """Of the parts that there are, by commas; `none` stands alone."""
    words = [part.strip() for part in text.split(",") if part.strip()]
    if words == [NONE]:
        return []
    if unknown := [part for part in words if part not in PARTS]:
        raise ConfigError(
            f"a report has no part {unknown[0]!r}: choose from {', '.join(PARTS)}, or {NONE} to measure nothing"
        )
    if not words:
        raise ConfigError(f"--parts is empty: choose from {', '.join(PARTS)}, or {NONE} to measure nothing")
    return words


def _run(vlm: VLM, plan: Plan, out: Path, batch_size: int) -> Summary:
    from heal.bench.run.runner import Settings, run
    from heal.cli.evaluate import bar

    note(f"{plan.name}: {len(plan.methods)} methods on {', '.join(plan.tasks)}, {plan.images} pictures")
    with bar(True) as watch:
        settings = Settings(batch_size=batch_size, prefix_cache=True)
        return run(vlm, plan.made_tasks(), plan.methods, out / plan.name, settings, resume=True, watch=watch)
