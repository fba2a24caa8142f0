"""`heal detect`: fit, judge and describe detectors of hallucinated object words."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heal.cli import common
from heal.cli.output import AsJson, Format, FormatOption, Table, chosen_format, emit, emit_csv, note, say, show
from heal.cli.progress import progress
from heal.errors import ConfigError

if TYPE_CHECKING:
    from heal.detect.collecting import Setup
    from heal.detect.evaluation import Verdict
    from heal.detect.labels import Labelled
    from heal.detect.model import Detector
    from heal.detect.sources import Source
    from heal.methods import HEAL
    from heal.vlm import VLM

CURVE = (25, 50, 100, 200, 400, 800, 1600, 3200)
"""Numbers of captions of a learning curve."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Fit and judge detectors of hallucinated words.")

Data = Annotated[
    Path | None,
    typer.Option(
        help='JSON Lines of {"image": path, "objects": [COCO category, …]}, or a folder with the data of CHAIR. '
        "Default: the miniature world."
    ),
]
Images = Annotated[int, typer.Option("--limit", min=1, max=common.MOST_SCENES, help="Maximum number of images.")]
Stored = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the measured features. The same command continues an interrupted one from there. "
        "Default: a folder next to the output, deleted at the end."
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=common.MOST_ROWS, help="Images per batch.")]
MEASURE = "heal:calibrate=false"


@app.callback()
def _detect() -> None:
    """Fit and judge detectors of hallucinated words."""


@app.command()
def fit(
    model: common.Model = common.EMBEDDED,
    data: Data = None,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("detector.json"),
    limit: Images = 1000,
    features: Stored = None,
    method: common.MethodText = MEASURE,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Words with at least this risk are doubtful.")] = 0.5,
    batch_size: Batch = 16,
    max_new_tokens: common.MaxNewTokens = 128,
    seed: common.Seed = 0,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Fit a detector to the model's descriptions of images whose objects are known.

    It needs scikit-learn. Without --data, the validation split of the miniature world is described, natural and
    counter scenes in equal parts.
    """
    from heal.detect.collecting import renumbered
    from heal.detect.fitting import fit as fitted
    from heal.detect.labels import joined
    from heal.detect.sources import sources
    from heal.tracing import versions

    output = chosen_format(form, as_json)
    common.check_writable(out, "the detector", folder=False)
    measuring, chosen = _method(method), sources(data, limit, "validation", seed)
    folder = features or out.with_name(f"{out.name}.features")
    common.check_writable(folder, "the features", folder=True)
    vlm = common.load(model, dtype, device, allow_incomplete)
    words = _collected(vlm, chosen, measuring, batch_size, max_new_tokens, folder)
    labelled = joined([renumbered(own, index * common.MOST_SCENES) for index, own in enumerate(words.values())])
    told = {"model": vlm.name, "data": "; ".join(source.name for source in chosen), "versions": versions()}
    found = fitted(
        labelled,
        words=chosen[0].words,
        options={**_changed_options(measuring), "calibrate": False},
        source={**told, "method": measuring.name, "options": measuring.options()},
        threshold=threshold,
        seed=seed,
    )
    found.save(out)
    if features is None:
        shutil.rmtree(folder, ignore_errors=True)
    _print_detector(found, out, output)


@app.command(name="eval")
def evaluate(
    out: Annotated[Path, typer.Option(help="Folder of the results.")],
    model: common.Model = common.EMBEDDED,
    detector: Annotated[
        Path | None, typer.Option(help="File written by `heal detect fit`. Default: the detector of the checkpoint.")
    ] = None,
    data: Data = None,
    limit: Images = 2000,
    features: Stored = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="Features that `heal detect fit --features` stored: adds a learning curve from them."),
    ] = None,
    method: common.MethodText = MEASURE,
    batch_size: Batch = 16,
    max_new_tokens: common.MaxNewTokens = 128,
    resamples: Annotated[int, typer.Option(min=10, max=100_000, help="Bootstrap resamples of the images.")] = 1000,
    seed: common.Seed = 0,
    form: FormatOption = None,
    as_json: AsJson = False,
    dtype: common.Dtype = "auto",
    device: common.Device = None,
    allow_incomplete: common.AllowIncomplete = False,
) -> None:
    """Judge a detector on images that it was not fitted to, against baselines on the same words.

    Without --data, the test split of the miniature world is described. Writes a table (Markdown, CSV, JSON) and
    figures. The same command continues an interrupted one.
    """
    from heal.detect.evaluation import learning_curve, verdicts
    from heal.detect.report import write
    from heal.detect.sources import sources
    from heal.extras import require

    output = chosen_format(form, as_json)
    require("matplotlib", *(("sklearn",) if curve else ()))
    common.check_writable(out, "the results", folder=True)
    measuring, chosen = _method(method), sources(data, limit, "test", seed)
    training = None if curve is None else _stored(curve)
    vlm = common.load(model, dtype, device, allow_incomplete)
    judge = _detector(detector, vlm)
    words = _collected(vlm, chosen, measuring, batch_size, max_new_tokens, features or out / "features")
    found = verdicts(judge, words, seed, resamples)
    sizes = [] if training is None else [size for size in CURVE if size < training.captions] + [training.captions]
    curves = {} if training is None else learning_curve(training, words, sizes, seed=seed)
    told = {
        "model": vlm.name,
        "detector": dict(judge.source),
        "data": [source.name for source in chosen],
        "method": measuring.options(),
        "seed": seed,
        "resamples": resamples,
    }
    write(out, found, told, curves)
    if features is None:
        shutil.rmtree(out / "features", ignore_errors=True)
    _print_verdicts(found, out, output)


@app.command(name="show")
def show_detector(
    model: common.Model = common.EMBEDDED,
    detector: Annotated[
        Path | None, typer.Option(help="File written by `heal detect fit`. Default: the detector of the checkpoint.")
    ] = None,
    form: FormatOption = None,
    as_json: AsJson = False,
) -> None:
    """Describe a detector: what it was fitted to, its features and their weights."""
    from heal.detect.model import FILE, Detector

    output = chosen_format(form, as_json)
    folder = Path(__file__).parents[1] / "data" / "model" if model == common.EMBEDDED else Path(model)
    path = detector or folder / FILE
    _print_detector(Detector.load(path), path, output)


# ── parts of the commands ─────────────────────────────────────────────────────────────────────────────────


def _method(text: str) -> HEAL:
    from heal.methods import HEAL, parse

    chosen = parse(text)
    if not isinstance(chosen, HEAL):
        raise ConfigError(f"detectors are fitted to what heal measures, not to {chosen.name}")
    return chosen


def _changed_options(method: HEAL) -> dict[str, Any]:
    """The options that are not the defaults."""
    from heal.methods import HEAL

    default = HEAL().options()
    return {name: value for name, value in method.options().items() if value != default[name]}


def _detector(path: Path | None, vlm: VLM) -> Detector:
    from heal.detect.model import Detector

    return Detector.of_model(vlm.model) if path is None else Detector.load(path)


def _collected(
    vlm: VLM, chosen: Sequence[Source], method: HEAL, batch: int, tokens: int, folder: Path
) -> dict[str, Labelled]:
    """The labelled words of each source, measured or read from the folder."""
    from heal.detect.collecting import collect
    from heal.detect.labels import joined

    found = {}
    for source in chosen:
        parts: list[Labelled] = []
        with progress("images") as report:
            report(f"describing {source.kind} images", 0, len(source.pictures))
            for part in collect(vlm, source.pictures, _setup(source, method, batch, tokens), folder / source.kind):
                parts.append(part)
                done = min(len(parts) * batch, len(source.pictures))
                report(f"describing {source.kind} images", done, len(source.pictures))
        found[source.kind] = joined(parts)
    return found


def _setup(source: Source, method: HEAL, batch: int, tokens: int) -> Setup:
    from heal.detect.collecting import Setup

    return Setup(source.name, source.words, method, batch, tokens)


def _stored(folder: Path) -> Labelled:
    """All features in a folder of `heal detect fit --features`."""
    from heal.detect.collecting import renumbered, stored
    from heal.detect.labels import joined

    kinds = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not kinds:
        raise ConfigError(f"{folder} has no features: name the folder that was given to `heal detect fit --features`")
    return joined([renumbered(stored(kind), index * common.MOST_SCENES) for index, kind in enumerate(kinds)])


def _print_verdicts(found: Sequence[Verdict], out: Path, output: Format) -> None:
    from heal.detect import report

    if output is Format.json:
        return emit(report.record(found, folder=str(out)))
    if output is Format.csv:
        return emit_csv(report.rows(found))
    show(Table(*report.overview(found), "AUROC"), output)
    for line in report.sentences(found):
        say(line)
    note(f"tables and figures: {out}")


def _print_detector(found: Detector, path: Path, output: Format) -> None:
    facts: dict[str, Any] = {
        **{name: found.source.get(name) for name in ("model", "data", "captions", "words", "hallucinated")},
        "object words": found.words,
        "threshold": found.threshold,
        "file": str(path),
    }
    quality = found.source.get("cross-validation") or {}
    models = [
        {"model": name, "features": sum(len(own.at) for own in model.columns), **quality.get(name, {})}
        for name, model in {**found.models, **found.baselines}.items()
    ]
    if output is Format.json:
        return emit({**facts, "layers": found.layers, "heads": found.heads, "models": models})
    if output is Format.csv:
        return emit_csv(models)
    if output is Format.table:
        say(f"a detector for {facts['model']}: {facts['words']} object words in {facts['captions']} captions, ")
        say(f"{facts['hallucinated']} of them hallucinated ({facts['data']})")
    cells = [[m["model"], str(m["features"]), f"{m.get('auroc', math.nan):.3f}"] for m in models]
    show(Table(("features", "number", "cross-validated AUROC"), cells), output)
    note(f"detector: {path}")
