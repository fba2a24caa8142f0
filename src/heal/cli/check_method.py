"""`heal check-method`: the laws that every method has to keep, on a method of yours."""

from __future__ import annotations

from typing import Annotated

import typer

from heal.cli.output import say
from heal.errors import ConfigError


def check_method(
    method: Annotated[str, typer.Argument(help="A method, as path/to/file.py:Name:option=value or by its name.")],
    neutral: Annotated[
        str | None, typer.Option(help="Options with which the method should change nothing: strength=0.")
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Check on the embedded model instead of a small random one.")
    ] = False,
) -> None:
    """Run the laws on a method: neutral strength, a row alone, honest counters, nothing remains."""
    from heal.check_method import check_method as check
    from heal.methods import parse
    from heal.vlm import VLM

    chosen = parse(method)
    still = parse(_with_options(method, neutral)) if neutral is not None else None
    verdicts = check(chosen, still, VLM.embedded() if embedded else VLM.random())
    for verdict in verdicts:
        sign = {True: "ok", False: "FAILED", None: "not checked"}[verdict.holds]
        say(f"{sign:12} {verdict.law}" + (f" ({verdict.detail})" if verdict.detail else ""))
    if any(verdict.holds is False for verdict in verdicts):
        raise ConfigError(f"{chosen.name} breaks a law")


def _with_options(text: str, options: str) -> str:
    """The same method with more options."""
    has_options = "=" in text.rpartition(":")[2]
    return f"{text}{',' if has_options else ':'}{options}"
