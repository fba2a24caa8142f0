"""A batch of prompts as model inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heal.engine.source import Source


@dataclass(frozen=True)
class Request:
    """The model inputs for a batch of prompts, and the source they were made from."""

    arguments: dict[str, Any]
    """Tensors for generate(), padded on the left."""
    source: Source
    messages: tuple[tuple[dict[str, Any], ...], ...]
    """The chat messages of each prompt, without the images themselves."""
    first: int = 0
    """Index of the first prompt among all prompts of the call."""
