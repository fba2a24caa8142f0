"""Matplotlib figures without a display."""

from __future__ import annotations

import io
import os
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from heal.atomic_write import atomic_write


def new(width: float, height: float) -> Figure:
    """Create a figure without global state, window or backend."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 120) -> Path:
    drawn, kind = io.BytesIO(), Path(path).suffix.lstrip(".") or "png"
    with rc_context({"svg.hashsalt": "heal"}):  # reproducible SVG files
        figure.savefig(drawn, dpi=dpi, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return atomic_write(path, drawn.getvalue())
