"""Convert values to strict JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def json_values(value: Any) -> Any:
    """Replace NaN by null, infinity, paths and lone surrogates by strings, and tuples by lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {_text(str(k)): json_values(v) for k, v in value.items()}
    if isinstance(value, Path):
        return _text(str(value))
    if isinstance(value, str):
        return _text(value)
    return [json_values(v) for v in value] if isinstance(value, (list, tuple)) else value


def _text(text: str) -> str:
    """Lone surrogates, as in undecodable file names, become six characters like \\udc80."""
    return text.encode(errors="backslashreplace").decode() if not text.isascii() else text
