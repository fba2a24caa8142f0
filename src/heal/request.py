"""A batch of prompts, ready for a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heal.engine.source import Source


@dataclass(frozen=True)
class Request:
    """What a model is given for a batch of prompts, and what that was made from."""

    arguments: dict[str, Any]
    """Tensors for generate(), padded on the left."""
    source: Source
    messages: tuple[tuple[dict[str, Any], ...], ...]
    """The chat messages of each prompt, without the images themselves."""
    first: int = 0
    """Index of its first prompt among all prompts of the call."""
