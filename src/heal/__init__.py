"""heal: find and reduce hallucinations of multimodal LLMs at inference time, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PLACES = {
    "HEAL": "heal.methods.heal",
    "Method": "heal.methods.base",
    "Fired": "heal.methods.base",
    "VLM": "heal.vlm",
    "Answer": "heal.generate",
    "Trace": "heal.trace",
    "HeadMap": "heal.analysis.taxonomy",
    "HeadType": "heal.analysis.taxonomy",
    "HeadScores": "heal.analysis.information",
}

__all__ = [
    "HEAL",
    "VLM",
    "Answer",
    "Fired",
    "HeadMap",
    "HeadScores",
    "HeadType",
    "Method",
    "Trace",
    "__version__",
]

if TYPE_CHECKING:
    from heal.analysis.information import HeadScores
    from heal.analysis.taxonomy import HeadMap, HeadType
    from heal.generate import Answer
    from heal.methods.base import Fired, Method
    from heal.methods.heal import HEAL
    from heal.trace import Trace
    from heal.vlm import VLM


def __dir__() -> list[str]:
    """List the public names for completion, although they are imported on first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `heal --help` does not wait for torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'heal' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
