"""Plots. Each function returns a matplotlib figure, and `save` writes it to a file."""

from __future__ import annotations

from heal.extras import optional

with optional():
    from heal.plots.figure import save
    from heal.plots.heads import head_map
    from heal.plots.mix import mix_over_tokens

__all__ = ["head_map", "mix_over_tokens", "save"]
