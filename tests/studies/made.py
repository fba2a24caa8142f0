"""Hand-made records for tests of studies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import Interval
from heal.bench.score.summary import Row, Summary
from heal.studies.parts import Evaluated, Measured
from heal.studies.study import Report
from heal.studies.token_kinds import TokenKind

C, I, V, L, S = (int(kind) for kind in list(HeadType)[:5])  # noqa: E741


def traced(
    id: str,
    types: object,
    visual: object = 0.3,
    language: object = 0.3,
    total: object = 0.6,
    names: Sequence[Mapping[str, object]] = (),
    kinds: Sequence[TokenKind] | None = None,
    contribution: object = 0.1,
    unit: str = "",
) -> Measured:
    """A record of `plain_traces`. `types` is [step][layer][head]; scores are broadcast to its shape."""
    kind = np.array(types, np.uint8)
    steps = len(kind)

    def array(value: object) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, np.float32), kind.shape).copy()

    facts = {
        "unit": unit or id,
        "distribution": "natural",
        "text": "x" * steps,
        "token_ids": list(range(steps)),
        "spans": [[i, i + 1] for i in range(steps)],
        "logprobs": [-0.5] * steps,
        "finish": "stop",
        "kinds": [int(k) for k in kinds or [TokenKind.CONTENT] * steps],
        "names": list(map(dict, names)),
        "objects": ["dog"],
    }
    arrays = {"visual": array(visual), "language": array(language), "total": array(total), "types": kind}
    arrays |= {"contribution": array(contribution)}
    return Measured(id, facts, arrays)


def cells(report: Report, *labels: str, table: int = 0) -> dict[Any, dict[str, Any]]:
    """The cells of a table by the values of these labels: one value, or a tuple of several."""
    keys = [tuple(row.labels[label] for label in labels) for row in report.tables[table].rows]
    assert len(set(keys)) == len(keys), "give more labels"
    return {
        key if len(labels) > 1 else key[0]: dict(row.values)
        for key, row in zip(keys, report.tables[table].rows, strict=True)
    }


def name(step: int, correct: bool = True, first: bool = True, category: str = "dog") -> dict[str, object]:
    found = {"category": category, "correct": correct, "step": step, "last": step, "order": 0, "first": first}
    return dict(found)


def score(
    task: str,
    method: str,
    figures: Mapping[str, Interval],
    differences: Mapping[str, Interval] | None = None,
    **more: Any,
) -> Row:
    """A row of a summary. What is not given is zero or unknown."""
    unknown = dict.fromkeys(("seconds", "seconds_per_token", "time_ratio", "yes_ratio", "mean_tokens"), float("nan"))
    numbers = dict.fromkeys(("answered", "failed", "missing", "memory"), 0) | {"answered": 10}
    rest: dict[str, Any] = {"headline": next(iter(figures)), "higher_is_better": True, "changed": None}
    rest |= {"fired": None, "reason": None}
    return Row(task=task, method=method, figures=figures, differences=differences, **unknown | numbers | rest | more)


def evaluated(*rows: Row) -> Evaluated:
    """The results of an evaluation, without answers."""
    return Evaluated(Summary(Path("made"), rows), {}, {})


def interval(value: float, width: float = 1.0) -> Interval:
    return Interval(value, value - width, value + width)
