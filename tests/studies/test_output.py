import csv
import io
import json

import pytest

from heal.studies import output
from heal.studies.setup import Setup
from heal.studies.study import Outcome, Report, Row, Study, Table, Value, Verdict
from heal.studies.verdicts import judged

STUDY = Study("made", "a made study", "Table 1", lambda setup: [], lambda found: Report((), ()))
MODEL = {"name": "embedded", "dtype": "float32", "device": "cpu"}
ROWS = (
    Row({"method": "plain"}, {"share": Value(0.5, 0.4, 0.6, n=30), "F1": Value(80.0, paper=85.4, digits=1)}),
    Row({"method": "he|al"}, {"share": Value(float("nan"), paper=0.43, expected="↑"), "note": "none", "n": 3}),
)
DRIFT = Value(0.1, 0.05, 0.2, expected="↑", paper=0.15)
REPORT = Report((Table("main", ROWS, "Main"), Table("more", ROWS[:1])), [judged("drift", DRIFT)], notes=("A note.",))


def draw():
    from heal.plots import figure

    made = figure.new(2.0, 2.0)
    made.add_subplot().plot([0, 1])
    return made


def test_markdown_has_the_papers_figure_in_the_next_column():
    lines = output.markdown_table(REPORT.tables[0]).splitlines()
    assert lines == [
        "| method | share | paper | F1 | paper | note | n |",
        "|---|---|---|---|---|---|---|",
        "| plain | 0.50 (0.40 to 0.60) |  | 80.0 | 85.4 |  |  |",
        r"| he\|al | – | 0.43 ↑ |  |  | none | 3 |",
    ]


def test_csv_has_intervals_and_empty_cells():
    first, second = csv.DictReader(io.StringIO(output.csv_text(REPORT.tables[0])))
    assert (first["share"], first["share low"], first["share high"], first["share n"]) == ("0.5", "0.4", "0.6", "30")
    assert (first["F1"], first["F1 low"], first["F1 paper"], first["note"]) == ("80.0", "", "85.4", "")
    assert (second["share"], second["share paper"], second["share expected"]) == ("", "0.43", "↑")


def test_all_files_are_written(tmp_path):
    report = Report(REPORT.tables, REPORT.verdicts, {"main": draw, "other": draw}, REPORT.notes)
    output.write_report(tmp_path / "made", STUDY, Setup(), MODEL, report)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "figure-other.png",
        "figure-other.svg",
        "figure.png",
        "figure.svg",
        "table-more.csv",
        "table.csv",
        "table.json",
        "table.md",
        "verdict.txt",
    ]
    assert (tmp_path / "made" / "verdict.txt").read_text() == "drift confirmed: 0.10 (0.05 to 0.20), paper 0.15\n"
    stored = json.loads((tmp_path / "made" / "table.json").read_text())
    assert stored["tables"][0]["rows"][0]["values"]["share"]["low"] == 0.4
    assert stored["tables"][0]["rows"][1]["values"]["share"]["value"] is None
    assert stored["verdicts"][0]["outcome"] == "confirmed"
    text = (tmp_path / "made" / "table.md").read_text()
    assert "- A note." in text
    assert "100 images each of the miniature world's test split (natural), seed 0" in text


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (Value(0.1, 0.05, 0.2, expected="↑"), Outcome.CONFIRMED),
        (Value(-0.1, -0.2, -0.05, expected="↓"), Outcome.CONFIRMED),
        (Value(-0.1, -0.2, -0.05, expected="↑"), Outcome.CONTRADICTED),
        (Value(0.1, -0.05, 0.2, expected="↑"), Outcome.NOT_CONFIRMED),
        (Value(0.1, -0.05, 0.2, expected="="), Outcome.CONSISTENT),
        (Value(0.1, 0.05, 0.2, expected="="), Outcome.CONTRADICTED),
        (Value(0.1, 0.05, 0.2), Outcome.MEASURED),
        (Value(0.1, expected="↑", n=7), Outcome.TOO_FEW),
    ],
)
def test_verdicts_follow_from_the_interval(value, outcome):
    found = judged("drift", value)
    assert isinstance(found, Verdict)
    assert found.outcome == outcome
    if outcome == Outcome.TOO_FEW:
        assert "7; an interval needs 20" in found.text
