"""A function in the place of a method of one object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def shadow(thing: Any, name: str, function: Callable[..., Any]) -> Callable[[], Any]:
    """Shadow a method of its class; the returned step undoes it, and what the instance had of its own comes back."""
    own = vars(thing)
    undo = partial(own.__setitem__, name, own[name]) if name in own else partial(own.pop, name, None)
    own[name] = function
    return undo
