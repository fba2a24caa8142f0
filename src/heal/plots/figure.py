"""Figures without a display, and files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def new(width: float, height: float) -> Figure:
    """A figure of its own: no global state, no window, no backend to choose."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 120) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, dpi=dpi, format=path.suffix.lstrip(".") or "png")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
