"""Pictures of what was measured. Each function returns a matplotlib figure; `save` writes it whole or not at all."""

from __future__ import annotations

from heal.plots.figure import save
from heal.plots.heads import head_map
from heal.plots.mix import mix_over_tokens

__all__ = ["head_map", "mix_over_tokens", "save"]
