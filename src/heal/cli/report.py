"""`heal report`: the results of the embedded model, run by run, as one document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heal.cli.common import EMBEDDED, load, note
from heal.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from heal.bench.summary import Summary
    from heal.experiments.embedded import Plan
    from heal.vlm import VLM


def report(
    subject: Annotated[str, typer.Argument(help="What to report on: embedded.")] = EMBEDDED,
    out: Annotated[Path, typer.Option(help="The folder of the runs; a stopped report goes on where it was.")] = Path(
        "runs/embedded"
    ),
    to: Annotated[Path, typer.Option(help="The document to write.")] = Path("docs/results.md"),
    images: Annotated[int, typer.Option(min=1, help="Test pictures of each distribution.")] = 1000,
    validation: Annotated[int, typer.Option(min=1, help="Validation pictures.")] = 300,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples answered at once.")] = 32,
) -> None:
    """Measure the plain model, beam search and HEAL in all its forms on the embedded model, and write it down."""
    from heal.experiments import embedded
    from heal.methods import HEAL
    from heal.report.embedded import document, premise

    if subject != EMBEDDED:
        raise ConfigError(f"there is no report on {subject!r}: only embedded")
    vlm = load(EMBEDDED, "auto", None)
    if vlm.name != EMBEDDED:
        raise ModelError("there is nothing to report on: this copy of the package has no embedded model")
    runs: dict[str, Summary] = {}

    def done(plan: Plan) -> Summary:
        runs[plan.name] = _run(vlm, plan, out, batch_size)
        return runs[plan.name]

    drifts = {d: premise(vlm, "validation", d, validation) for d in ("natural", "counter")}
    done(embedded.safety(validation))
    validated = done(embedded.choice(validation))
    names = [name for name in embedded.equilibria() if name.startswith("heal")]
    best = embedded.chosen(validated, names)
    note(f"chosen on the validation split: {best}")
    method = embedded.equilibria()[best]
    assert isinstance(method, HEAL)
    for distribution in ("natural", "counter"):
        done(embedded.result(distribution, images))
        done(embedded.controls(distribution, images, method))
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(document(runs, drifts, best, images, validation))
    print(f"written: {to}")


def _run(vlm: VLM, plan: Plan, out: Path, batch_size: int) -> Summary:
    from heal.bench.runner import Settings, run
    from heal.cli.evaluate import bar

    note(f"{plan.name}: {len(plan.methods)} methods on {', '.join(plan.tasks)}, {plan.images} pictures")
    with bar(True) as watch:
        settings = Settings(batch_size=batch_size)
        return run(vlm, plan.made_tasks(), plan.methods, out / plan.name, settings, resume=True, watch=watch)
