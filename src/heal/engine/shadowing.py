"""Replace a method of a single object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def shadow(thing: Any, name: str, function: Callable[..., Any]) -> Callable[[], Any]:
    """Shadow a method of the class by a function. The returned function restores the previous state."""
    own = vars(thing)
    undo = partial(own.__setitem__, name, own[name]) if name in own else partial(own.pop, name, None)
    own[name] = function
    return undo
