"""The command line interface."""

from __future__ import annotations

import sys

from heal.errors import MissingPackageError
from heal.extras import require

__all__ = ["main"]


def main() -> None:
    """The console script. Without the extra `cli` it says how to get it."""
    try:
        require("typer", "rich")
    except MissingPackageError as error:
        sys.exit(f"heal: error: the command line is not installed: {error}")
    from heal.cli.app import main as run

    run()
