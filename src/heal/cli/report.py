"""`heal report` (for maintainers): measure the embedded model and write docs/results.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.common import EMBEDDED, MOST_ROWS, MOST_SCENES, OldImages, check_writable, load
from heal.cli.output import note, say
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.bench.score.summary import Summary
    from heal.methods import HEAL
    from heal.report.document import Findings
    from heal.report.plans import Plan
    from heal.vlm import VLM

NONE = "none"
DISTRIBUTIONS = ("natural", "counter")
PARTS = ("premise", "validation", "noise", *DISTRIBUTIONS, "methods")


def report(
    subject: Annotated[str, typer.Argument(help="The model to report on: embedded.")] = EMBEDDED,
    out: Annotated[Path, typer.Option(help="Folder of the runs. An interrupted report is resumed.")] = Path(
        "runs/embedded"
    ),
    to: Annotated[Path, typer.Option(help="The document to write.")] = Path("docs/results.md"),
    count: Annotated[int, typer.Option(min=1, max=MOST_SCENES, help="Test images per distribution.")] = 1000,
    fewer: Annotated[
        int, typer.Option(min=1, max=MOST_SCENES, help="Test images for controls and other methods.")
    ] = 500,
    validation: Annotated[int, typer.Option(min=1, max=MOST_SCENES, help="Validation images.")] = 300,
    batch_size: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Samples per batch.")] = 128,
    parts: Annotated[
        str,
        typer.Option(
            help="Comma-separated list of the runs to make, so that several processes can share a report; none to "
            "write the document from the stored results of this model."
        ),
    ] = ",".join(PARTS),
    images: OldImages = None,
) -> None:
    """For maintainers: measure all methods on the embedded model and write docs/results.md.

    Stored results of the same model are reused. Delete their files next to the document to measure them again.
    """
    from heal.bench.run.environment import weights_fingerprint
    from heal.report.document import gather

    if subject != EMBEDDED:
        raise ConfigError(f"there is no report on {subject!r}: only embedded")
    wanted = wanted_parts(parts)
    check_writable(out, "the runs", folder=True)
    check_writable(to, "the document", folder=False)
    vlm = load(EMBEDDED, "auto", None)
    figures, weights = to.with_suffix(""), weights_fingerprint(vlm.model)
    _measure(_Experiments(vlm, out, figures, weights, batch_size), wanted, count, fewer, validation)
    found = gather(out, figures, weights)
    if not found.runs and not found.drifts:
        raise ConfigError(f"there are no results yet, neither in {out} nor in {figures}: omit --parts")
    _write(found, to, figures)
    say(f"written: {to}, with all figures in {figures}")


@dataclass(frozen=True)
class _Experiments:
    """Runs plans on one model, unless their results are stored already."""

    vlm: VLM
    out: Path
    figures: Path
    weights: str
    batch_size: int

    def result(self, plan: Plan) -> Summary:
        """The stored summary of a plan for the same weights, or the summary of a new run."""
        from heal.report.stored_results import SUFFIX, load_stored

        stored = load_stored(self.figures / f"{plan.name}{SUFFIX}")
        if stored and stored.weights == self.weights and stored.matches(plan.create_tasks(), plan.methods):
            return stored.summary
        return self._run(plan)

    def chosen_form(self, validation: int) -> HEAL:
        """The form of HEAL that is best on the validation split."""
        from heal.methods import HEAL
        from heal.report import plans

        best = plans.chosen_form(self.result(plans.choice(validation)))
        note(f"chosen on the validation split: {best}")
        method = plans.equilibria()[best]
        assert isinstance(method, HEAL)
        return method

    def _run(self, plan: Plan) -> Summary:
        from heal.bench.run.runner import Settings, run
        from heal.cli.evaluate import answer_progress

        note(f"{plan.name}: {len(plan.methods)} methods on {', '.join(plan.tasks)}, {plan.images} images")
        settings, folder = Settings(batch_size=self.batch_size, prefix_cache=True), self.out / plan.name
        with answer_progress(True) as watch:
            return run(self.vlm, plan.create_tasks(), plan.methods, folder, settings, resume=True, watch=watch)


def _measure(experiments: _Experiments, wanted: list[str], count: int, fewer: int, validation: int) -> None:
    """Make the wanted runs. Settings are chosen on the validation split only."""
    from heal.report import plans
    from heal.report.document import premise, premise_file, write_premise

    if "premise" in wanted:
        for distribution in DISTRIBUTIONS:
            drift = premise(experiments.vlm, "validation", distribution, validation)
            write_premise(drift, premise_file(experiments.figures, distribution))
    if "validation" in wanted:
        experiments.result(plans.safety(validation))
        experiments.result(plans.choice(validation))
    if "noise" in wanted:
        for split, images in (("validation", validation), ("test", fewer)):
            for distribution in DISTRIBUTIONS:
                experiments.result(plans.noise(split, distribution, images))
    for distribution in (d for d in DISTRIBUTIONS if d in wanted):
        experiments.result(plans.result(distribution, count))
        experiments.result(plans.questions(distribution, count))
        experiments.result(plans.controls(distribution, fewer, experiments.chosen_form(validation)))
    if "methods" in wanted:
        settings = plans.tuned(experiments.result(plans.tuning(validation)))
        experiments.result(plans.baselines("natural", fewer, None))
        experiments.result(plans.baselines("natural", fewer, settings))


def _write(found: Findings, to: Path, figures: Path) -> None:
    """Write the plots and the document."""
    from heal.atomic_write import atomic_write
    from heal.plots.cost import panels, quality_against_cost
    from heal.plots.figure import save
    from heal.plots.trade import curves, trade_off
    from heal.report.document import PLOTS, document
    from heal.studies.comparison import comparison_rows

    draw = {"published-natural": lambda t: quality_against_cost(panels(t)), "tuning": lambda t: trade_off(curves(t))}
    for name, (file, _) in PLOTS.items():
        if name in found.runs:
            save(draw[name](comparison_rows(found.runs[name].summary)), figures / file)
    atomic_write(to, document(found))


def wanted_parts(text: str) -> list[str]:
    """Parse the comma-separated parts; `none` stands alone."""
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
