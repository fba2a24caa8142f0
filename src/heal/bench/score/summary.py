"""Summary of a run: figures with intervals, differences to the first method, cost and activity of the methods."""

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
from heal.bench.score.equal_recall import EqualRecall, cut_counts, equal_recall
from heal.bench.tasks import catalogue
from heal.bench.tasks.base import Counts, Sample, Task, figures, unit_counts
from heal.bench.tasks.judged import Ask
from heal.errors import ConfigError, RunError, shortened

Parses = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """Results of one method on one task."""

    task: str
    method: str
    headline: str
    """Name of the main figure."""
    higher_is_better: bool
    answered: int
    failed: int
    missing: int
    """Samples without a record, because the run has not finished."""
    figures: Mapping[str, Interval]
    differences: Mapping[str, Interval] | None
    """Paired differences to the first method, on samples that both answered; None for the first."""
    changed: int | None
    """Number of answers that differ from the first method's; None for the first."""
    fired: int | None
    """Number of answers in which the method changed something; None for the plain model."""
    reason: str | None
    """Why the method changed nothing, where it changed nothing."""
    yes_ratio: float
    """Percentage of "yes" among the verdicts; NaN for tasks without yes/no questions."""
    mean_tokens: float
    seconds: float
    """Total time of all answers."""
    seconds_per_token: float
    """Decoding time after the first token, median over batches, for all rows of a batch together."""
    time_ratio: float
    """Ratio to the first method, median over batches."""
    memory: int
    """Peak memory in bytes over all batches."""
    note: str = ""
    """Remark of the task on the figures: how answers were parsed, or why some were not counted."""
    left_out: int = 0
    """Number of samples that were skipped because their images are missing."""
    first_error: str | None = None
    """Error message of the first failed sample."""
    equal_recall: EqualRecall | None = None
    """CHAIR_i compared with the first method at equal recall; None for the first, and for tasks without captions."""

    @property
    def asked(self) -> int:
        """Number of samples of the task, including failed and skipped ones."""
        return self.answered + self.failed + self.missing + self.left_out

    @property
    def unchanged(self) -> bool:
        """Whether all answers are identical to those of the first method."""
        return self.changed == 0 and self.answered > 0


@dataclass(frozen=True)
class Summary:
    """All rows, ordered by task, then by method."""

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
        """The content of scores.json."""
        rows = [asdict(row) | {"unchanged": row.unchanged} for row in self.rows]
        return {"failed": self.failed, "missing": self.missing, "rows": rows}


def rescore(path: str | Path, ask: Ask | None = None, tasks: Mapping[str, Task] | None = None) -> Summary:
    """Parse and score the answers of a run again and write scores.json.

    `ask` is a judge; `tasks` are those that are not in the catalogue.
    """
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
    """Like `rescore`, without writing. `against` replaces the first method as the reference of comparisons."""
    described = folder.description()
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
        task = given or restore_task(description, folder.path, whole="format" in described)
        try:
            found = _rows(name, task, methods, samples[name], records, ask, configuration["seed"])
        except (KeyError, TypeError, AttributeError) as error:
            if given is not None:
                raise  # a bug in the caller's own task
            raise RunError(
                f"the samples in {folder.path} do not fit the task {shortened(name)} that its run.json names "
                f"({type(error).__name__}: {shortened(str(error))}): it is damaged or "
                "comes from another version of heal"
            ) from error
        rows += [replace(row, left_out=description.get("left_out", 0)) for row in found]
    return Summary(folder.path, tuple(rows))


def restore_task(description: Mapping[str, Any], folder: Path, whole: bool = False) -> Task:
    """Recreate the task of a run for parsing and scoring. Its data is not needed.

    `whole`: run.json must name every option. Runs of the first version may lack options that were added later.
    """
    name = description["name"]
    if name not in catalogue.available_tasks():
        raise RunError(f"the task {shortened(name)} is not in the catalogue: give it with tasks=")
    try:
        return catalogue.restore(name, catalogue.current_options(name, description["options"]), whole)
    except ConfigError as error:
        raise RunError(f"{folder / RUN} has an invalid option of the task {name}: {error}") from error


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
    first: _Answers | None = None
    for method in methods:
        own = {s.id: r for s in samples if (r := records.get(Key(name, method, s.id))) is not None}
        answered = {id: record for id, record in own.items() if record.error is None}
        parses = {s.id: _parse(task, s, answered[s.id].text or "", ask) for s in samples if s.id in answered}
        mine = _Answers(method, own, answered, parses)
        found.append(_row(name, task, samples, mine, first, seed))
        first = first or mine
    return found


@dataclass(frozen=True)
class _Answers:
    """The records of one method on one task."""

    method: str
    own: Mapping[str, Record]
    answered: Mapping[str, Record]
    """Without failed samples."""
    parses: Parses


def _row(name: str, task: Task, samples: Sequence[Sample], mine: _Answers, first: _Answers | None, seed: int) -> Row:
    """The results of a method; `first` is the method to compare with, None for the first method itself."""
    answered, parses = mine.answered, mine.parses
    firings = [record.fired for record in answered.values() if record.fired is not None]
    if firings and len(firings) < len(answered):
        raise RunError(
            f"some records of {shortened(mine.method)} on {shortened(name)} lack `fired`: the run is damaged"
        )
    before = first.answered if first else {}
    speed = _speed(answered, before if first else answered)
    return Row(
        task=name,
        method=mine.method,
        headline=task.headline,
        higher_is_better=task.higher_is_better,
        answered=len(answered),
        failed=len(mine.own) - len(answered),
        missing=len(samples) - len(mine.own),
        figures=_figures(task, unit_counts(task, samples, parses), seed),
        differences=_differences(task, samples, first.parses, parses, seed) if first else None,
        changed=sum(r.text != before[i].text for i, r in answered.items() if i in before) if first else None,
        fired=sum(f["steps"] > 0 for f in firings) if firings else None,
        reason=next((f["reason"] for f in firings if f["steps"] == 0), None),
        yes_ratio=_yes_ratio(parses),
        mean_tokens=fmean(r.tokens for r in answered.values()) if answered else math.nan,
        seconds=sum((r.seconds for r in answered.values()), start=0.0) if answered else math.nan,
        memory=max((r.memory for r in answered.values()), default=0),
        equal_recall=_equal_recall(task, samples, first, mine, seed) if first else None,
        note=task.note(parses.values()),
        first_error=next((record.error for record in mine.own.values() if record.error is not None), None),
        seconds_per_token=speed["seconds_per_token"],
        time_ratio=speed["time_ratio"],
    )


def _yes_ratio(parses: Parses) -> float:
    verdicts = [parse["answer"] for parse in parses.values() if parse.get("answer") in ("yes", "no")]
    return 100 * verdicts.count("yes") / len(verdicts) if verdicts else math.nan


def _parse(task: Task, sample: Sample, text: str, ask: Ask | None) -> dict[str, Any]:
    return task.parse(sample, text) if ask is None else task.judge(sample, text, ask)


def _figures(task: Task, counts: Mapping[str, Counts], seed: int) -> dict[str, Interval]:
    if counts:
        return bootstrap.intervals(task.score, counts, seed)
    # a count of 0 unparsable answers would look like a good result
    return dict.fromkeys(figures(task, []), Interval(math.nan, math.nan, math.nan))


def _differences(
    task: Task, samples: Sequence[Sample], first: Parses, second: Parses, seed: int
) -> dict[str, Interval]:
    both = [s for s in samples if all(s.id in own and task.counted(own[s.id]) for own in (first, second))]
    before, after = unit_counts(task, both, first), unit_counts(task, both, second)
    return bootstrap.differences(task.score, before, after, seed)


def _equal_recall(
    task: Task, samples: Sequence[Sample], first: _Answers, second: _Answers, seed: int
) -> EqualRecall | None:
    both = [s for s in samples if s.id in first.answered and s.id in second.answered]
    before, after = (
        cut_counts(task, both, {s.id: own.answered[s.id].text or "" for s in both}) for own in (first, second)
    )
    return equal_recall(before, after, seed)


def _speed(own: Mapping[str, Record], first: Mapping[str, Record]) -> dict[str, float]:
    """Median time per token and ratio to the first method, taken within batches because methods take turns there."""
    mine, theirs = _batch_times(own), _batch_times(first)
    ratios = [mine[batch] / theirs[batch] for batch in mine if theirs.get(batch)]
    return {
        "seconds_per_token": median(mine.values()) if mine else math.nan,
        "time_ratio": median(ratios) if ratios else math.nan,
    }


def _batch_times(records: Mapping[str, Record]) -> dict[int, float]:
    """Seconds per token after the first, by batch. Batches of one-token answers are ignored."""
    seconds: dict[int, float] = {}
    tokens: dict[int, int] = {}
    for r in records.values():
        seconds[r.batch] = seconds.get(r.batch, 0.0) + r.seconds - r.first_token_seconds
        tokens[r.batch] = tokens.get(r.batch, 0) + r.tokens - 1
    return {batch: seconds[batch] / tokens[batch] for batch in seconds if tokens[batch] > 0}
