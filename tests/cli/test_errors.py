"""Every error is one line with an exit code and no traceback. Light commands need no heavy imports."""

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import heal
from heal.cli import app as application
from heal.errors import ConfigError, HealWarning, ModelError

LONG = "x" * 100_000
DIGITS = "9" * 5000
Heal = Callable[..., tuple[int, str, str]]


@pytest.fixture
def heal_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Heal:
    """Runs `heal ARGS` in this process and an empty folder; returns exit code and both outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(application.DEBUG, raising=False)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["heal", *args])
        with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
            application.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


EVAL = ["eval", "mini-pope:count=1", "--model", "random", "--out", "run"]
RUN = ["run", "it.png", "what?", "--model", "random", "--max-new-tokens", "1"]
REFUSED: dict[str, tuple[list[str], str]] = {
    "generate": ([*EVAL, "--generate", "num_beams=three"], "num_beams cannot be 'three'"),
    "generate twice": ([*EVAL, "--generate", "num_beams=2", "--generate", "num_beams=3"], "given twice"),
    "data as a task option": (["eval", "mini-pope:data=x", "--out", "run"], "mini-pope has no option 'data'"),
    "name as a task option": (["eval", "mini-pope:name=x", "--out", "run"], "mini-pope has no option 'name'"),
    "old task option": (["eval", "mini-pope:images=3", "--out", "run"], "write count"),
    "old option": (["compare", "--images", "3"], "--images was renamed to --count"),
    "task option twice": (["eval", "mini-pope:count=1,count=2", "--out", "run"], "mini-pope:count is given twice"),
    "method option twice": ([*RUN, "--method", "heal:alpha=0.3,alpha=0.9"], "heal:alpha is given twice"),
    "alpha twice": ([*RUN, "--method", "heal:alpha=0.3", "--alpha", "0.9"], "alpha is given twice"),
    "beams twice": ([*RUN, "--method", "beam:beams=2", "--num-beams", "3"], "--num-beams 3 conflicts with beam"),
    "layers": ([*RUN, "--method", "heal:layers=0-1000000000000"], "no model has more than 10000 layers"),
    "layers beyond the model": ([*RUN, "--method", "heal:layers=0-5000"], "(0 to 5)"),
    "seed twice": ([*EVAL, "--seed", "1", "--seed=2"], "--seed is given twice"),
    "flag twice": ([*RUN, "--json", "--json"], "--json is given twice"),
    "short and long": ([*RUN, "-m", "random"], "--model is given twice"),
    "a value that looks like an option": ([*EVAL, "--max-new-tokens", "--json", "--json"], "'--max-new-tokens'"),
    "negative seed": ([*EVAL, "--seed", "-1"], "'--seed'"),
    "large seed": ([*EVAL, "--seed", str(2**64)], "'--seed'"),
    "digits": ([*EVAL, "--seed", DIGITS], "'--seed'"),
    "tokens": ([*EVAL, "--max-new-tokens", "0"], "'--max-new-tokens'"),
    "very many tokens": ([*EVAL, "--max-new-tokens", "10000000000"], "'--max-new-tokens'"),
    "batch": ([*EVAL, "--batch-size", "0"], "'--batch-size'"),
    "count": (["eval", f"mini-pope:count={DIGITS}", "--out", "run"], "the number is too large"),
    "very many scenes": (["eval", "mini-pope:count=1000000000000", "--out", "run"], "count must be from 1 to 100000"),
    "long out": (["eval", "mini-pope", "--out", LONG], "File name too long"),
    "long part of out": (["eval", "mini-pope", "--out", "a/" + "b" * 256], "File name too long"),
    "out in a file": (["eval", "mini-pope", "--out", "it.png/run"], "it.png is not a folder"),
    "trace into a pipe": ([*RUN, "--trace", "pipe"], "it is not an ordinary file"),
    "long image": (["run", "y" * 300, "what?", "--model", "random"], "there is no image at"),
    "long demo folder": (["run", "--out", LONG], "File name too long"),
    "long method": ([*RUN, "--method", LONG], "choose one of beam, dola, guard, heal"),
    "long command": ([LONG], "No such command"),
    "device": ([*RUN, "--device", "meta"], "has no weights"),
    "prompt": (["run", "it.png", "\udcff", "--model", "random"], "not text in UTF-8"),
    "formats": (["list", "methods", "--json", "--format", "csv"], "contradict"),
    "steering": ([*RUN, "--method", "\x1b[2J\u202e"], "\\x1b[2J"),
    "a check of a method that refuses the model": (["check-method", "heal:alpha=auto"], "no equilibrium of its own"),
    "neutral options that change none": (["check-method", "beam", "--neutral", ","], "changes no option of beam"),
    "parts": (["report", "--parts", ","], "--parts is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_input_gives_one_line_and_exit_code_2(heal_: Heal, tmp_path: Path, name: str) -> None:
    Image.fromarray(np.zeros((56, 56, 3), np.uint8)).save(tmp_path / "it.png")
    os.mkfifo(tmp_path / "pipe")
    args, message = REFUSED[name]
    code, out, err = heal_(*args)
    (line,) = (line for line in err.splitlines() if line.startswith("heal: error: "))
    assert (code, out) == (2, "")
    assert message in line
    assert len(line) < 600
    assert not set(err) & {"\x1b", "\u202e", "\udcff"}
    assert not (tmp_path / "run").exists()


def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("heal.cli.listing._models", fail)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("it is " + "y" * 200_000 + " wrong"), 2, "heal: error: it is y"),
        (ModelError("\x1b[2J[red]\nmodel"), 3, "heal: error: \\x1b[2J[red] model\n"),
        (PermissionError(13, "Permission denied", "/some/file"), 2, "heal: error: /some/file: Permission denied\n"),
        (KeyError("odd"), 1, "heal: error: unexpected KeyError: 'odd'. This is a bug in heal: please report it"),
        (MemoryError(), 1, "heal: error: out of memory: use a smaller batch"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), 1, "heal: error: out of memory"),
        (KeyboardInterrupt(), 130, "heal: interrupted\n"),
    ],
)
def test_every_error_is_one_line(heal_: Heal, monkeypatch, error: BaseException, code: int, message: str) -> None:
    broken(monkeypatch, error)
    ended, out, err = heal_("list", "models")
    assert (ended, out) == (code, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert len(err) < 700


def test_debug_variable_shows_the_traceback(heal_: Heal, monkeypatch) -> None:
    broken(monkeypatch, KeyError("odd"))
    monkeypatch.setenv("HEAL_DEBUG", "1")
    code, _, err = heal_("list", "models")
    assert code == 1
    assert "Traceback" in err
    assert "HEAL_DEBUG=1" in err.splitlines()[-1]


def test_warning_is_one_short_line(heal_: Heal, monkeypatch) -> None:
    def warn(_: bool) -> list[Any]:
        warnings.warn("\x1b[2J\n" + "z" * 200_000, HealWarning, stacklevel=1)
        return []

    monkeypatch.setattr("heal.cli.listing._models", warn)
    code, _, err = heal_("list", "models")
    assert code == 0
    assert err.startswith("heal: warning: \\x1b[2J zzz")
    assert err.count("\n") == 1
    assert len(err) < 600


def test_usage_names_the_help(heal_: Heal) -> None:
    assert "(see `heal run --help`)" in heal_("run", "--nonsense")[2]


def test_no_arguments_print_the_help(heal_: Heal) -> None:
    assert "Commands:" in "".join(heal_()[1:])


def test_summaries_are_not_truncated(heal_: Heal, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = heal_("--help")
    text = " ".join(out.split())
    assert code == 0
    assert "..." not in text.replace("[ARGS]...", "")
    assert "head types and visual share per token." in text


def test_parts_none_measures_nothing(heal_: Heal, monkeypatch, tmp_path: Path) -> None:
    def measure(*_: Any, **__: Any) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("heal.bench.run.runner.run", measure)
    monkeypatch.setattr("heal.report.document.premise", measure)
    code, _, err = heal_("report", "--parts", "none", "--to", "results.md")
    assert code == 2
    assert "there are no results yet" in err
    kept = Path(heal.__file__).parents[2] / "docs" / "results"
    (tmp_path / "results").symlink_to(kept)
    before = {path: path.stat().st_mtime_ns for path in kept.glob("*.json")}
    monkeypatch.setattr("heal.plots.figure.save", lambda *_: None)
    assert heal_("report", "--parts", "none", "--to", "results.md")[0] == 0
    assert "Not measured yet" not in (tmp_path / "results.md").read_text()
    assert before == {path: path.stat().st_mtime_ns for path in kept.glob("*.json")}


# ── in separate processes ─────────────────────────────────────────────────────────────────────────────


def start(*args: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "heal", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_version_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['heal', '--version']\n"
        "from heal.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, {'torch', 'numpy', 'rich.console', 'PIL'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"heal {heal.__version__}\n0 set()\n"


def test_demo_announces_itself_before_importing_torch(tmp_path: Path) -> None:
    """The fake torch exits, so anything printed after its import would be missing."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = start("run", "--out", str(tmp_path / "demo"), env=os.environ | {"PYTHONPATH": path})
    _, err = process.communicate(timeout=60)
    first, *_, last = err.splitlines()
    assert first.startswith("demo: the small model of this package describes drawn scenes")
    assert last == "torch was imported"


def test_closed_pipe() -> None:
    process = start("--help")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1


def test_encoding_without_greek(heal_: Heal, monkeypatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, "ascii"))
    assert heal_("list", "models")[0] == 0
    assert b"\\u03b1 0.5" in raw.getvalue()


def test_interruption_during_startup() -> None:
    interrupted = "app.refuse_repeated = lambda *_: os.kill(os.getpid(), signal.SIGINT)"
    code = f"import os, signal\nfrom heal.cli import app\n{interrupted}\napp.main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "heal: interrupted\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(heal_: Heal, monkeypatch, shell: str) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    code, out, _ = heal_("--show-completion", shell)
    assert code == 0
    assert "_HEAL_COMPLETE" in out
