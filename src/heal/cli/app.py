"""The command line application: commands, error messages and exit codes."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

import heal
from heal.cli.analyze import analyze
from heal.cli.app_command import app as app_command
from heal.cli.calibrate import calibrate
from heal.cli.check_method import check_method
from heal.cli.compare import compare
from heal.cli.data import app as data
from heal.cli.detect import app as detect
from heal.cli.evaluate import evaluate
from heal.cli.listing import lists
from heal.cli.repeated_options import refuse_repeated
from heal.cli.report import report
from heal.cli.run import run
from heal.cli.score import app as score
from heal.cli.speed import speed
from heal.cli.study import study
from heal.cli.view import view
from heal.errors import HealError, HealWarning, ModelError, UnsupportedError
from heal.escape import LONGEST, one_line

EXIT_CODES = """\
Exit codes: 0 success; 1 unexpected error; 2 invalid input or options; 3 the model cannot be loaded or used;
4 finished, but some samples failed; 130 interrupted."""

INTERRUPTED = 130

DEBUG = "HEAL_DEBUG"
"""Environment variable that enables tracebacks."""

UsageError: Any = typer.BadParameter.__base__  # of typer's vendored click, or of click itself

app = typer.Typer(
    name="heal",
    help="Find and reduce hallucinations of multimodal LLMs at inference time, without training.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"heal {heal.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _heal(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find and reduce hallucinations of multimodal LLMs at inference time, without training."""


def _add(command: Callable[..., None], name: str) -> None:
    """Add a command with the first paragraph of its docstring as its short help."""
    paragraph = (inspect.getdoc(command) or "").partition("\n\n")[0]
    app.command(name, short_help=" ".join(paragraph.split()))(command)


for _command, _name in (
    (run, "run"),
    (analyze, "analyze"),
    (calibrate, "calibrate"),
    (check_method, "check-method"),
    (compare, "compare"),
    (speed, "speed"),
    (evaluate, "eval"),
    (view, "view"),
    (app_command, "app"),
    (lists, "list"),
    (report, "report"),
    (study, "study"),
):
    _add(_command, _name)
app.add_typer(score, name="score")
app.add_typer(data, name="data")
app.add_typer(detect, name="detect")


def main() -> None:
    """Run the application. Errors are printed as one line on standard error, without a traceback."""
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", HealWarning)
    warnings.showwarning = _one_line
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # do not fail if the encoding has no α
    try:
        refuse_repeated(typer.main.get_command(app), sys.argv[1:])
        code = app(prog_name="heal", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        _fail(error)
    if code == INTERRUPTED:
        print("heal: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _one_line(message: object, category: type[Warning], *_: object, **__: object) -> None:
    print(f"heal: warning: {one_line(message, LONGEST)}", file=sys.stderr)


def _fail(error: Exception) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        sys.exit(2)
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    message, advice, code = _explained(error)
    print(f"heal: error: {one_line(message, LONGEST)}{advice}", file=sys.stderr)
    sys.exit(code)


def _explained(error: Exception) -> tuple[str, str, int]:
    """Error message, advice and exit code."""
    if isinstance(error, (ModelError, UnsupportedError)):
        return str(error), "", 3
    if isinstance(error, HealError):
        return str(error), "", 2
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx is not None else "heal"
        return error.format_message().rstrip("."), f" (see `{command} --help`)", 2
    if _out_of_memory(error):
        return "out of memory", ": use a smaller batch, fewer tokens or a smaller model", 1
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror}", "", 2
    advice = f". This is a bug in heal: please report it with the traceback that {DEBUG}=1 in the environment shows"
    return f"unexpected {type(error).__name__}: {error}", advice, 1


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: in Python, in torch on a GPU, or in torch on a CPU (only its message tells)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
