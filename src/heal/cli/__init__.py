"""The command line: `heal run`, `heal analyze`, `heal speed`, `heal list`."""

from heal.cli.app import main

__all__ = ["main"]
