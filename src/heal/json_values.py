"""Values as strict JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def json_values(value: Any) -> Any:
    """JSON has neither NaN (null here) nor infinity (a text here), tuples nor paths; UTF-8 has no lone surrogates."""
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
    """Half a surrogate pair, as in the name of an odd file, becomes the six characters \\udc80."""
    return text.encode(errors="backslashreplace").decode() if not text.isascii() else text
