"""Progress on standard error: plain lines in a file, a bar in a terminal."""

import io
import re

import pytest

from heal.cli.progress import PlainProgress, progress


def lines_of(total: int, seconds: float, before: int = 0) -> list[str]:
    """The lines of a run that finishes one item every `seconds` seconds."""
    found: list[str] = []
    now = 0.0
    lines = PlainProgress("answers", found.append, lambda: now)
    for done in range(before, total + 1):
        now = (done - before) * seconds
        lines.report("task", done, total)
    return found


def test_a_line_at_every_tenth() -> None:
    found = lines_of(1000, 0.001)
    assert len(found) == 10
    assert found[0] == "task: 100/1000 answers (10 %), 1000.0 answers/s, about 1 s left"
    assert found[-1] == "task: 1000/1000 answers (100 %), 1000.0 answers/s in 1 s"


def test_a_line_every_ten_seconds() -> None:
    found = lines_of(20, 11.0)
    assert len(found) == 20
    assert found[0] == "task: 1/20 answers (5 %), 0.1 answers/s, about 209 s left"


def test_earlier_items_do_not_count_towards_the_rate() -> None:
    assert lines_of(100, 1.0, before=90)[-1] == "task: 100/100 answers (100 %), 1.0 answers/s in 10 s"
    assert lines_of(5, 1.0, before=5) == ["task: 5/5 answers (100 %)"]


def test_no_control_characters_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("answers") as report:
        for done in range(4):
            report("\x1b[31m[red]task\n", done, 3)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(" answers")[0] for line in err.splitlines()] == [
        f"\\x1b[31m[red]task: {done}/3" for done in (1, 2, 3)
    ]


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress("answers") as report:
        for done in range(4):
            report("[red]task\x1b[2J", done, 3)
    shown = terminal.getvalue()
    assert "━" in shown
    assert "3/3" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "[red]task\\x1b[2J" in re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_hidden_progress_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("answers", shown=False) as report:
        report("task", 1, 1)
    assert capsys.readouterr() == ("", "")


def test_the_rate_of_other_work_is_its_own() -> None:
    found: list[str] = []
    now = 0.0
    lines = PlainProgress("answers", found.append, lambda: now)
    for what, before, total in (("first", 0, 50), ("second", 20, 80), ("third", 0, 80)):
        for done in range(before, total + 1):
            now += 1.0
            lines.report(what, done, total)
    assert [line for line in found if "-" in line] == []
    assert "first: 50/50 answers (100 %), 1.0 answers/s in 50 s" in found
    assert "second: 80/80 answers (100 %), 1.0 answers/s in 60 s" in found
    assert found[-1] == "third: 80/80 answers (100 %), 1.0 answers/s in 80 s"
