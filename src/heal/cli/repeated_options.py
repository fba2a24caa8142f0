"""Refuse options that are given twice, because click silently uses the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heal.errors import ConfigError


def refuse_repeated(command: Any, words: Sequence[str]) -> None:
    """Parse a command line as click does and refuse repeated options."""
    seen: set[str] = set()
    left = iter(words)
    for word in left:
        if word == "--":
            return
        option, value_follows = _option(command, word)
        if option is None:
            inner = getattr(command, "commands", {}).get(word)
            if inner is not None:
                command, seen = inner, set()
            continue
        if option.name in seen and not option.multiple and not option.count:
            raise ConfigError(f"{option.opts[0]} is given twice: give it once")
        seen.add(option.name)
        if value_follows:
            next(left, None)


def _option(command: Any, word: str) -> tuple[Any, bool]:
    """The option named by a word, and whether its value is the next word."""
    name, equals, _ = word.partition("=")
    for parameter in command.params:
        names = [*getattr(parameter, "opts", ()), *getattr(parameter, "secondary_opts", ())]
        if parameter.param_type_name != "option":
            continue
        if name in names:
            return parameter, not parameter.is_flag and not equals
        short = [own for own in names if len(own) == 2 and word.startswith(own) and not word.startswith("--")]
        if short:  # -mvalue
            return parameter, False
    return None, False
