"""What a run is worth: figures with intervals, differences to the first method, cost, and proof of effect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from heal.bench.run.folder import RUN, Folder
from heal.bench.run.records import Key, Record
from heal.bench.score import bootstrap
from heal.bench.score.bootstrap import Interval
from heal.bench.tasks import catalogue
from heal.bench.tasks.base import Counts, Sample, Task, figures, unit_counts
from heal.bench.tasks.judged import Ask, JudgedTask
from heal.errors import ConfigError, RunError, shortened

Parses = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """One method on one task."""

    task: str
    method: str
    headline: str
    """The figure to look at first."""
    higher_is_better: bool
    answered: int
    failed: int
    missing: int
    """Samples without a record: the run has not finished."""
    figures: Mapping[str, Interval]
    differences: Mapping[str, Interval] | None
    """To the first method, paired, on samples that both answered; None for the first."""
    changed: int | None
    """Answers that differ from the first method's; None for the first."""
    fired: int | None
    """Answers in which the method changed something; None for the plain model."""
    reason: str | None
    """Why the method did nothing where it did nothing."""
    yes_ratio: float
    """Per cent of the verdicts that are yes; NaN for a task without yes and no."""
    mean_tokens: float
    seconds: float
    """For all answers."""
    seconds_per_token: float
    """After the first token, median over batches; of all rows of the batch together."""
    time_ratio: float
    """To the first method, median over batches."""
    memory: int
    """The most bytes held in any batch."""
    note: str = ""
    """What the task says beside the figures: how answers were read, or why some were not counted."""
    left_out: int = 0
    """Samples that were never asked, because their images are missing."""
    first_error: str | None = None
    """Why the first of the failed samples failed."""

    @property
    def asked(self) -> int:
        """How many samples there would be figures of if all were answered."""
        return self.answered + self.failed + self.missing + self.left_out

    @property
    def unchanged(self) -> bool:
        """It answered everything just as the first method did."""
        return self.changed == 0 and self.answered > 0


@dataclass(frozen=True)
class Summary:
    """All rows, task by task, methods in the order of the run."""

    folder: Path
    rows: tuple[Row, ...]

    @property
    def failed(self) -> int:
        return sum(row.failed for row in self.rows)

    @property
    def missing(self) -> int:
        return sum(row.missing for row in self.rows)

    def row(self, task: str, method: str) -> Row:
        return next(row for row in self.rows if (row.task, row.method) == (task, method))

    def scores(self) -> dict[str, Any]:
        """As scores.json has it."""
        rows = [asdict(row) | {"unchanged": row.unchanged} for row in self.rows]
        return {"failed": self.failed, "missing": self.missing, "rows": rows}


def rescore(path: str | Path, ask: Ask | None = None, tasks: Mapping[str, Task] | None = None) -> Summary:
    """Read every answer of a run anew, write scores.json. `ask` is a judge; `tasks` those not in the catalogue."""
    folder = Folder(Path(path))
    summary = summarise(folder, ask, tasks)
    folder.save_scores(summary.scores())
    return summary


def summarise(
    folder: Folder,
    ask: Ask | None = None,
    tasks: Mapping[str, Task] | None = None,
    against: str | None = None,
) -> Summary:
    """The same, written nowhere. `against` is what the others are compared with, in the place of the first method."""
    described = folder.described()
    configuration = described["configuration"]
    samples, records = folder.samples(), folder.records()
    methods = list(configuration["methods"])
    if against is not None:
        if against not in methods:
            known = shortened(", ".join(methods), 1000)
            raise RunError(f"the run in {folder.path} has no method {against!r}: choose from {known}")
        methods = [against, *(name for name in methods if name != against)]
    rows: list[Row] = []
    for name, description in configuration["tasks"].items():
        given = (tasks or {}).get(name)
        task = given or task_again(description, folder.path, whole="format" in described)
        try:
            found = _rows(name, task, methods, samples[name], records, ask, configuration["seed"])
        except (KeyError, TypeError, AttributeError) as error:
            if given is not None:
                raise  # a mistake in the caller's own task
            raise RunError(
                f"the samples in {folder.path} do not fit the task {shortened(name)} that its run.json names "
                f"({type(error).__name__}: {shortened(str(error))}): it is damaged, or of another version of heal"
            ) from error
        rows += [replace(row, left_out=description.get("left_out", 0)) for row in found]
    return Summary(folder.path, tuple(rows))


def task_again(description: Mapping[str, Any], folder: Path, whole: bool = False) -> Task:
    """The task of a run, able to read and count answers; its data need not be there.

    `whole`: run.json names every option. Only the runs of the first version may lack some that came later.
    """
    name = description["name"]
    if name not in catalogue.available_tasks():
        raise RunError(f"the task {shortened(name)} is not in the catalogue: give it with tasks=")
    try:
        return catalogue.again(name, catalogue.current_options(name, description["options"]), whole)
    except ConfigError as error:
        raise RunError(f"{folder / RUN} has an option that the task {name} cannot have: {error}") from error


def _rows(
    name: str,
    task: Task,
    methods: Sequence[str],
    samples: Sequence[Sample],
    records: Mapping[Key, Record],
    ask: Ask | None,
    seed: int,
) -> list[Row]:
    found: list[Row] = []
    first: dict[str, Record] = {}
    first_parses: Parses = {}
    for method in methods:
        own = {s.id: r for s in samples if (r := records.get(Key(name, method, s.id))) is not None}
        answered = {id: record for id, record in own.items() if record.error is None}
        parses = {s.id: _parse(task, s, answered[s.id].text or "", ask) for s in samples if s.id in answered}
        counts = unit_counts(task, samples, parses)
        is_first = method == methods[0]
        if is_first:
            first, first_parses = answered, parses
        firings = [record.fired for record in answered.values() if record.fired is not None]
        if firings and len(firings) < len(answered):
            raise RunError(
                f"some records of {shortened(method)} on {shortened(name)} lack `fired`: the run is damaged"
            )
        speed = _speed(answered, first)
        found.append(
            Row(
                task=name,
                method=method,
                headline=task.headline,
                higher_is_better=task.higher_is_better,
                answered=len(answered),
                failed=len(own) - len(answered),
                missing=len(samples) - len(own),
                figures=_figures(task, counts, seed),
                differences=None if is_first else _differences(task, samples, first_parses, parses, seed),
                changed=None if is_first else sum(r.text != first[i].text for i, r in answered.items() if i in first),
                fired=sum(f["steps"] > 0 for f in firings) if firings else None,
                reason=next((f["reason"] for f in firings if f["steps"] == 0), None),
                yes_ratio=_yes_ratio(parses),
                mean_tokens=fmean(r.tokens for r in answered.values()) if answered else math.nan,
                seconds=sum((r.seconds for r in answered.values()), start=0.0) if answered else math.nan,
                seconds_per_token=speed["seconds_per_token"],
                time_ratio=speed["time_ratio"],
                memory=max((r.memory for r in answered.values()), default=0),
                note=task.note(parses.values()),
                first_error=next((record.error for record in own.values() if record.error is not None), None),
            )
        )
    return found


def _yes_ratio(parses: Parses) -> float:
    verdicts = [parse["answer"] for parse in parses.values() if parse.get("answer") in ("yes", "no")]
    return 100 * verdicts.count("yes") / len(verdicts) if verdicts else math.nan


def _parse(task: Task, sample: Sample, text: str, ask: Ask | None) -> dict[str, Any]:
    if ask is not None and isinstance(task, JudgedTask):
        return task.judge(sample, text, ask)
    return task.parse(sample, text)


def _figures(task: Task, counts: Mapping[str, Counts], seed: int) -> dict[str, Interval]:
    if counts:
        return bootstrap.intervals(task.score, counts, seed)
    # a count of unparsable answers is 0 here, which would look like a good one
    return dict.fromkeys(figures(task, []), Interval(math.nan, math.nan, math.nan))


def _differences(
    task: Task, samples: Sequence[Sample], first: Parses, second: Parses, seed: int
) -> dict[str, Interval]:
    both = [s for s in samples if all(s.id in own and task.counted(own[s.id]) for own in (first, second))]
    before, after = unit_counts(task, both, first), unit_counts(task, both, second)
    return bootstrap.differences(task.score, before, after, seed)


def _speed(own: Mapping[str, Record], first: Mapping[str, Record]) -> dict[str, float]:
    """Methods take turns within a batch, so a ratio within one is fair, and a slow first batch does not matter."""
    mine, theirs = _batch_times(own), _batch_times(first)
    ratios = [mine[batch] / theirs[batch] for batch in mine if theirs.get(batch)]
    return {
        "seconds_per_token": median(mine.values()) if mine else math.nan,
        "time_ratio": median(ratios) if ratios else math.nan,
    }


def _batch_times(records: Mapping[str, Record]) -> dict[int, float]:
    """Seconds for each token after the first, by batch; batches of one-token answers say nothing."""
    seconds: dict[int, float] = {}
    tokens: dict[int, int] = {}
    for r in records.values():
        seconds[r.batch] = seconds.get(r.batch, 0.0) + r.seconds - r.first_token_seconds
        tokens[r.batch] = tokens.get(r.batch, 0) + r.tokens - 1
    return {batch: seconds[batch] / tokens[batch] for batch in seconds if tokens[batch] > 0}
