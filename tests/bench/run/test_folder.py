"""Damaged, forged or foreign run folders give one clear error and never a figure."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heal.bench.run.folder import Folder
from heal.bench.run.records import Record
from heal.bench.score.summary import rescore
from heal.errors import HealError, RunError
from tests.bench.folders import TASK, finished, lines, record, rewrite


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


def test_valid_folder(path: Path) -> None:
    plain, healed = rescore(path).rows
    assert (plain.figures["f1"].value, healed.figures["f1"].value, plain.answered) == (100, 100, plain.asked)
    assert (plain.left_out, plain.first_error) == (0, None)


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": "0"}, "`batch` must be a whole number"),
        ({"batch": True}, "`batch` must be a whole number"),
        ({"tokens": -1}, "`tokens` must be"),
        ({"tokens": 1.5}, "`tokens` must be"),
        ({"seconds": "fast"}, "`seconds` must be a number"),
        ({"seconds": -1}, "`seconds` must be a number"),
        ({"memory": None}, "`memory` must be"),
        ({"text": 3}, "`text` must be a string or null"),
        ({"text": None}, "either `text` or `error`"),
        ({"error": "and a text"}, "either `text` or `error`"),
        ({"sample": 1}, "`sample` must be a name"),
        ({"task": None}, "`task` must be a name"),
        ({"method": ["plain"]}, "`method` must be a name"),
        ({"fired": {"steps": 1}}, "`fired` must be null or an object with steps"),
        ({"fired": []}, "`fired` must be"),
        ({"parse": "yes"}, "`parse` must be an object or null"),
        ({"finish": 0}, "`finish` must be"),
        ({"extra": 1}, "has `extra`, which is not a field of a record"),
    ],
)
def test_every_field_of_a_record_is_checked(path: Path, change: dict[str, Any], message: str) -> None:
    """This includes the last line: only a line that is not JSON can be left over from an interrupted run."""
    records = lines(path)
    for at in (3, len(records) - 1):
        rewrite(path, [*records[:at], records[at] | change, *records[at + 1 :]])
        with pytest.raises(RunError, match=f"line {at + 1} is not a record .*{message}"):
            rescore(path)


@pytest.mark.parametrize(
    "text", ["[]", "3", '"x"', "{}", "null", '{"task": "a", "task": "b"}', "9" * 5000, "[" * 50_000]
)
def test_lines_that_are_not_records(path: Path, text: str) -> None:
    content = (path / "records.jsonl").read_text()
    (path / "records.jsonl").write_text(f"{text}\n{content}")
    with pytest.raises(RunError, match="line 1 is not a record"):
        rescore(path)


def test_contradicting_records(path: Path) -> None:
    records = lines(path)
    rewrite(path, [*records, records[2] | {"seconds": 9.0}])
    assert rescore(path).missing == 0  # the same answer again
    rewrite(path, [*records, records[2] | {"text": "another"}])
    with pytest.raises(RunError, match='"plain" has two different answers to sample'):
        rescore(path)
    rewrite(path, records)
    (path / "records-000.jsonl").write_text(json.dumps(records[2] | {"text": None, "error": "E: x"}) + "\n")
    with pytest.raises(RunError, match=r"records-000.jsonl contradicts itself or another file"):
        rescore(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "chair"}, 'a record of the task "chair"'),
        ({"method": "vcd"}, 'a record of the method "vcd"'),
        ({"sample": "17"}, 'a record of the sample "17" of "mini-pope'),
        ({"sample": "x" * 10_000}, 'a record of the sample "xxx'),
    ],
)
def test_records_of_another_run_are_refused(path: Path, change: dict[str, Any], message: str) -> None:
    records = lines(path)
    rewrite(path, [*records, records[0] | change])
    with pytest.raises(RunError, match=f"{message}.*come from several runs") as raised:
        rescore(path)
    assert len(str(raised.value)) < 600


# ── run.json and samples.jsonl ────────────────────────────────────────────────────────────────────────────


def changed(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        for key in keys[:-1]:
            run = run[key]
        run.pop(keys[-1]) if to is ... else run.update({keys[-1]: to})

    return change


CONFIG, TASKS = "configuration", ("configuration", "tasks", TASK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(CONFIG, to=...), "does not describe a run"),
        (changed(CONFIG, to=[]), "does not describe a run"),
        (changed("environment", to=3), "environment must be an object"),
        (changed("format", to=2), "has format 2, newer than 1: update heal"),
        (changed("format", to="1"), "its format must be a number"),
        (changed(CONFIG, "seed", to=...), "has no `seed`: it is damaged or comes from another version"),
        (changed(CONFIG, "seed", to=-1), "configuration.seed must be a whole number"),
        (changed(CONFIG, "seed", to="0"), "configuration.seed must be a whole number"),
        (changed(CONFIG, "methods", to=["plain"]), "configuration.methods must be an object"),
        (changed(CONFIG, "methods", to={}), "configuration.methods must be an object"),
        (changed(CONFIG, "methods", "heal", to=3), "methods.heal must be an object"),
        (changed(CONFIG, "tasks", to=None), "configuration.tasks must be an object"),
        (changed(*TASKS, to=[]), "must be an object"),
        (changed(*TASKS, "name", to=7), "name must be a string"),
        (changed(*TASKS, "name", to="mini-chess"), "mini-chess is not in the catalogue"),
        (changed(*TASKS, "options", to=[]), "options must be an object"),
        (changed(*TASKS, "options", "images", to="1"), "mini-pope:count must be a int"),
        (changed(*TASKS, "options", "splits", to=5), "mini-pope:splits must be a list of strings"),
        (changed(*TASKS, "options", "splits", to=["odd"]), "split cannot be 'odd'"),
        (changed(*TASKS, "options", "colour", to=5), "has no option 'colour'"),
        (changed(*TASKS, "samples", to=2), "was changed after the run started"),
        (changed(*TASKS, "fingerprint", to="0"), "was changed after the run started"),
        (changed(*TASKS, "left_out", to="many"), "left_out must be a whole number"),
    ],
)
def test_every_field_of_the_description_is_checked(path: Path, change: Callable[[Any], None], message: str) -> None:
    run = json.loads((path / "run.json").read_text())
    change(run)
    (path / "run.json").write_text(json.dumps(run))
    with pytest.raises(RunError, match=message):
        rescore(path)


def test_folders_of_the_first_version_have_no_format(path: Path) -> None:
    run = json.loads((path / "run.json").read_text())
    assert run.pop("format") == 1
    (path / "run.json").write_text(json.dumps(run))
    assert rescore(path).missing == 0


def test_description_of_another_task_is_a_clear_error(path: Path) -> None:
    run = json.loads((path / "run.json").read_text())
    run["configuration"]["tasks"][TASK] |= {"name": "mini-chair", "options": {}}
    (path / "run.json").write_text(json.dumps(run))
    with pytest.raises(RunError, match=r"do not fit the task|needs the option"):
        rescore(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "line 1 must be an object"),
        ("{}", "line 1 has no `task`"),
        ('{"task": 1}', "line 1.task must be a string"),
        ('{"task": "x", "id": "1", "unit": "1", "prompt": "?", "truth": []}', "line 1.truth must be an object"),
        ('{"task": "x", "id": "1", "unit": "1", "prompt": "?", "truth": {}, "odd": 1}', "has `odd`"),
        ('{"task": "x", "id": "1", "unit": "1", "prompt": "?", "truth": {}}', 'samples of the task "x"'),
        ('{"task": "x", "task": "y"}', "the key 'task' occurs twice"),
        ("[" * 50_000, "nested"),
    ],
)
def test_every_field_of_a_sample_is_checked(path: Path, line: str, message: str) -> None:
    content = (path / "samples.jsonl").read_text()
    (path / "samples.jsonl").write_text(f"{line}\n{content}")
    with pytest.raises(RunError, match=message):
        rescore(path)


def test_changed_samples(path: Path) -> None:
    first, *rest = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    truth = '"label": "yes"' if '"label": "yes"' in first else '"label": "no"'
    other = first.replace(truth, '"label": "no"' if "yes" in truth else '"label": "yes"')
    for content in ("".join(rest), "".join([other, *rest]), "".join([*rest, first])):
        (path / "samples.jsonl").write_text(content)
        with pytest.raises(RunError, match="was changed after the run started"):
            rescore(path)


@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "records.jsonl"])
@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\xfe", b"\xef\xbb\xbf", b"{", b"[" * 50_000, b"1" * 5000, b"null"]
)
def test_broken_files(path: Path, name: str, content: bytes | None) -> None:
    """A folder instead of a file, an empty file, invalid UTF-8, invalid JSON, too deep nesting."""
    (path / name).unlink()
    (path / name).mkdir() if content is None else (path / name).write_bytes(content)
    if name == "records.jsonl" and content is not None:
        # a run interrupted while writing its first record: nothing is answered, and the summary says so
        assert rescore(path).missing == sum(row.asked for row in rescore(path).rows)
        return
    with pytest.raises(RunError, match=name) as raised:
        rescore(path)
    assert len(str(raised.value)) < 600


def test_folders_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "gone", tmp_path / "file", tmp_path, tmp_path / ("x" * 5000)):
        with pytest.raises(RunError, match=r"is not a run: it has no run\.json"):
            rescore(place)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["records.jsonl", "records-001.jsonl"])
def test_records_are_not_written_through_a_link(path: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "precious"
    target.write_text("all of it\n" * 1000)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(target)
    from heal.bench.run.records import Appender

    with pytest.raises(RunError, match="cannot be written: it is a symbolic link: remove it"):
        Appender(path / name, 0)
    with pytest.raises(RunError, match="line 1 is not a record"):
        Folder(path).appender(None if name == "records.jsonl" else 1)
    assert target.read_text() == "all of it\n" * 1000


def test_scores_are_not_written_through_a_link_or_to_a_folder(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("all of it")
    (path / "scores.json").symlink_to(target)
    with pytest.raises(RunError, match=r"scores.json cannot be written: it is a symbolic link"):
        rescore(path)
    assert target.read_text() == "all of it"
    (path / "scores.json").unlink()
    (path / "scores.json").mkdir()
    with pytest.raises(RunError, match=r"scores.json cannot be written: it is a folder"):
        rescore(path)


def test_records_respect_the_umask(path: Path) -> None:
    before = os.umask(0o077)
    try:
        Folder(path).appender(3).__exit__()
    finally:
        os.umask(before)
    assert (path / "records-003.jsonl").stat().st_mode & 0o777 == 0o600
    assert (path / "records.jsonl").stat().st_mode & 0o777 == 0o666 & ~before


def test_pipes_and_full_disks(path: Path) -> None:
    from heal.bench.run.records import Appender

    os.mkfifo(path / "pipe")
    with pytest.raises(RunError, match="cannot be written"):
        Appender(path / "pipe", 0)
    with pytest.raises(RunError, match="/dev/full cannot be written: it is a pipe or a device"):
        Appender(Path("/dev/full"), 0)


def test_answers_with_a_lone_surrogate_can_be_stored() -> None:
    kept = Record.of(record("plain", "1", "a \ud83d cat").line().encode())
    assert kept.text == "a \\ud83d cat"


# ── empty results ─────────────────────────────────────────────────────────────────────────────────────────


def test_no_answers_give_no_figures(tmp_path: Path) -> None:
    path = finished(tmp_path / "run", lambda label, method: label if method == "plain" else None)
    plain, healed = rescore(path).rows
    assert (healed.answered, healed.failed, healed.asked) == (0, plain.answered, plain.asked)
    assert healed.first_error == "ImageError: there is no image 7.jpg"
    for interval in healed.figures.values():
        assert math.isnan(interval.value)
    assert set(healed.figures) == set(plain.figures)
    assert math.isnan(healed.seconds)
    assert math.isnan(healed.mean_tokens)
    scores = json.loads((path / "scores.json").read_text())
    assert scores["rows"][1]["figures"]["unparsable"] == {"value": None, "low": None, "high": None}


def test_tables_report_the_number_of_answers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from heal.cli.summary import print_summary
    from heal.studies.comparison import comparison_rows, csv_rows, markdown

    path = finished(tmp_path / "run", lambda label, method: None if (label, method) == ("no", "heal") else label)
    summary = rescore(path)
    total, answered = summary.rows[0].asked, summary.rows[1].answered
    assert 0 < answered < total
    print_summary(summary)
    out = capsys.readouterr().out
    assert f"{answered} of {total}" in next(line for line in out.splitlines() if "heal" in line and "│" in line)
    assert "The first: ImageError: there is no image 7.jpg" in out
    table = comparison_rows(summary)
    assert f"– n={answered} of {total}" in markdown(table)  # f1 of questions with one label
    assert "nan" not in markdown(table)
    assert {(row["n"], row["n_asked"]) for row in csv_rows(table)} == {(total, total), (answered, total)}


def test_broken_folders_give_a_one_line_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    import sys

    from heal.cli import app as application

    (path / "run.json").write_text("[" * 50_000)
    monkeypatch.setattr(sys, "argv", ["heal", "score", str(path)])
    with pytest.raises(SystemExit) as stop:
        application.main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert "nested more than 64 levels" in err
    assert issubclass(RunError, HealError)
