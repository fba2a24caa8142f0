"""`heal check-method`: test a method of your own against the properties that every method must have."""

from __future__ import annotations

from typing import Annotated

import typer

from heal.cli.output import say
from heal.errors import ConfigError


def check_method(
    method: Annotated[str, typer.Argument(help="A method, as path/to/file.py:Name:option=value or by its name.")],
    neutral: Annotated[
        str | None, typer.Option(help="Options that should disable the method, such as strength=0.")
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Check on the embedded model instead of a small random one.")
    ] = False,
) -> None:
    """Check a method: neutral options change nothing, rows are independent, counters are correct, no hook remains."""
    from heal.check_method import check_method as check
    from heal.methods import parse
    from heal.vlm import VLM

    chosen = parse(method)
    disabled = parse(_with_options(method, neutral)) if neutral is not None else None
    if chosen == disabled:
        raise ConfigError(f"--neutral {neutral!r} changes no option of {chosen.name}: give options that disable it")
    verdicts = check(chosen, disabled, VLM.embedded() if embedded else VLM.random())
    for verdict in verdicts:
        sign = {True: "ok", False: "FAILED", None: "not checked"}[verdict.holds]
        say(f"{sign:12} {verdict.law}" + (f" ({verdict.detail})" if verdict.detail else ""))
    if any(verdict.holds is False for verdict in verdicts):
        raise ConfigError(f"{chosen.name} failed a check")


def _with_options(text: str, options: str) -> str:
    """Append options to a method string."""
    has_options = "=" in text.rpartition(":")[2]
    return f"{text}{',' if has_options else ':'}{options}"
