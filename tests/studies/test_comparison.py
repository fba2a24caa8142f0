import math
from dataclasses import replace
from pathlib import Path

import pytest

from heal.bench.score.bootstrap import Interval
from heal.bench.score.summary import Row, Summary
from heal.methods import available
from heal.studies.comparison import STRENGTHS, comparison_rows, csv_rows, markdown, published


def row(task, method, headline="f1", higher=True, value=80.0, shift=None, fired=None, ratio=1.0, **more):
    names = {headline: value, **more}
    figures = {name: Interval(v, v - 1, v + 1) for name, v in names.items()}
    differences = None if shift is None else {name: Interval(shift, shift - 0.5, shift + 0.5) for name in names}
    return Row(
        task=task,
        method=method,
        headline=headline,
        higher_is_better=higher,
        answered=10,
        failed=0,
        missing=0,
        figures=figures,
        differences=differences,
        changed=None,
        fired=fired,
        reason=None,
        yes_ratio=50.0,
        mean_tokens=30.0,
        seconds=1.0,
        seconds_per_token=0.1,
        time_ratio=ratio,
        memory=2**20,
    )


@pytest.fixture
def summary():
    rows = (
        row("mini-pope:count=2", "plain", accuracy=79.0),
        row("mini-pope:count=2", "heal", value=82.0, shift=2.0, fired=10, ratio=1.2, accuracy=81.0),
        row("mini-pope:count=2", "idle", value=80.2, shift=0.2, fired=0, ratio=math.nan, accuracy=79.0),
        row("mini-chair", "plain", "chair_s", False, 40.0, recall=70.0),
        row("mini-chair", "heal", "chair_s", False, 36.0, -4.0, 10, 1.4, recall=69.0),
        row("mini-chair", "idle", "chair_s", False, 40.0, 0.0, 0, 1.0, recall=70.0),
    )
    return Summary(Path("x"), rows)


def test_row_combines_the_tasks_of_a_method(summary):
    plain, heal, idle = comparison_rows(summary)
    assert {h: i.value for h, i in plain.figures.items()} == {
        "POPE F1": 80.0,
        "POPE acc.": 79.0,
        "CHAIR_s ↓": 40.0,
        "Recall": 70.0,
    }
    assert plain.differences == {}
    assert heal.differences["CHAIR_s ↓"].value == -4.0
    assert (plain.fired, heal.fired, idle.fired) == (None, True, False)
    assert (heal.time_ratio, idle.time_ratio) == (1.4, 1.0)


def test_time_comes_from_the_longest_answers():
    rows = (replace(row("mini-pope", "x", ratio=50.0), mean_tokens=2.0), row("mini-chair", "x", ratio=1.5))
    assert comparison_rows(Summary(Path("x"), rows))[0].time_ratio == 1.5


def test_short_answers_give_no_time():
    """A search may run much longer than the two tokens it returns."""
    rows = (replace(row("mini-mme", "x", ratio=50.0), mean_tokens=2.0),)
    (line,) = comparison_rows(Summary(Path("x"), rows))
    assert math.isnan(line.time_ratio)
    assert "| – | 1 MiB |" in markdown([line])


def test_table_marks_differences_and_inactive_methods(summary):
    header, _, plain, heal, idle = markdown(comparison_rows(summary)).splitlines()
    assert header == "| method | POPE F1 | POPE acc. | CHAIR_s ↓ | Recall | time ratio | memory | fired |"
    assert plain == "| plain | 80.0 | 79.0 | 40.0 | 70.0 | 1.00 | 1 MiB | – |"
    assert "82.0 (+2.0*)" in heal
    assert "36.0 (-4.0*)" in heal
    assert "80.2 (+0.2)" in idle
    assert idle.endswith("| **no** |")


def test_csv_has_one_row_per_figure(summary):
    rows = csv_rows(comparison_rows(summary))
    assert len(rows) == 12
    found = next(r for r in rows if (r["method"], r["figure"]) == ("heal", "CHAIR_s"))
    assert (found["value"], found["low"], found["high"], found["difference"]) == (36.0, 35.0, 37.0, -4.0)


def test_all_methods_have_the_same_budget():
    assert next(iter(published())) == "plain"
    assert set(published()) == {"plain", *available()} - {"guard"}  # it needs a detector of the model
    assert {m.name for settings in STRENGTHS.values() for m in settings} == set(available()) - {"guard"}
    for name, settings in STRENGTHS.items():
        assert len(settings) == len(set(map(str, settings))) == 4
        assert {m.name for m in settings} == {name.removesuffix(" one-sided")}
