"""The application: its commands, its error line and its exit codes."""

from __future__ import annotations

import sys
import warnings

import typer

from heal.cli.analyze import analyze
from heal.cli.calibrate import calibrate
from heal.cli.compare import compare
from heal.cli.data import app as data
from heal.cli.evaluate import evaluate
from heal.cli.lists import lists
from heal.cli.report import report
from heal.cli.run import run
from heal.cli.score import app as score
from heal.cli.speed import speed
from heal.errors import HealError, HealWarning, ModelError, UnsupportedError

EXIT_CODES = """\
Exit codes: 0 done; 1 an unexpected error; 2 bad input or options; 3 the model cannot be loaded or used;
4 finished, but some samples failed; 130 interrupted."""

app = typer.Typer(
    name="heal",
    help="Find and reduce hallucinations of multimodal LLMs at inference time, without training.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(analyze)
app.command()(calibrate)
app.command()(compare)
app.command()(report)
app.command()(speed)
app.command("eval")(evaluate)
app.command("list")(lists)
app.add_typer(score, name="score")
app.add_typer(data, name="data")


def _one_line(message: object, category: type[Warning], *_: object, **__: object) -> None:
    print(f"heal: warning: {message}", file=sys.stderr)


def main() -> None:
    """A wrong input is one clear line on standard error, never a traceback."""
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", HealWarning)
    warnings.showwarning = _one_line
    try:
        app()
    except (ModelError, UnsupportedError) as error:
        _fail(error, 3)
    except HealError as error:
        _fail(error, 2)
    except KeyboardInterrupt:
        print("heal: interrupted", file=sys.stderr)
        sys.exit(130)


def _fail(error: Exception, code: int) -> None:
    print(f"heal: error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)
