"""Values as strict JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """JSON has neither NaN (null here) nor infinity (a text here), tuples nor paths."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Path):
        return str(value)
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value
