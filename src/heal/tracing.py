"""From the records of a generation to the trace of one answer."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from heal.analysis.taxonomy import HeadType
from heal.errors import HealError
from heal.methods.base import Handle, Method
from heal.trace import Trace

if TYPE_CHECKING:
    from heal.vlm import VLM

PACKAGES = ("heal-mllm", "torch", "transformers", "numpy")


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """What each token adds to the text, so that together they are the text.

    A token decoded alone may lose the space before it, and half a character is nothing until the other half comes.
    """
    found, before = [], ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[:end]), clean_up_tokenization_spaces=False)
        whole = not text.endswith("\ufffd")
        found.append(text[len(before) :] if whole else "")
        before = text if whole else before
    return tuple(found)


def build_trace(vlm: VLM, handle: Handle, method: Method, ids: Sequence[int], at: Sequence[int]) -> Trace:
    """The records of the steps at which these tokens were made, each from the row that it was made in."""
    layout = handle.attachment.layout
    generation = handle.attachment.latest
    records = [] if generation is None or generation.data is None else generation.data.records
    if records and len(records) < len(ids):
        raise HealError(f"{len(ids)} tokens but only {len(records)} steps were measured")
    shape = (len(ids), len(layout.layers), layout.heads)

    def stacked(name: str) -> np.ndarray:
        if not records:
            return np.full(shape, np.nan, np.float32)
        steps = [getattr(r, name)[row].numpy() for r, row in zip(records, at, strict=False)]
        return np.stack(steps) if steps else np.zeros(shape)

    scores: dict[str, Any] = {
        name: stacked(name).astype(np.float32)
        for name in ("visual", "language", "total", "contribution", "beta", "gamma")
    }
    return Trace(
        **scores,
        synergy=scores["total"] - scores["visual"] - scores["language"],
        types=stacked("types").astype(np.uint8) if records else np.full(shape, HeadType.UNKNOWN, np.uint8),
        refreshed=np.array([r.refreshed for r in records[: len(ids)]] or [False] * len(ids), dtype=bool),
        token_ids=np.array(ids, dtype=np.int64),
        tokens=pieces(vlm.tokenizer, ids),
        text=vlm.tokenizer.decode(list(ids), skip_special_tokens=True).strip(),
        config={"method": method.name, "model": vlm.name, **method.options(), **handle.runtime.facts()},
        seed=int(getattr(method, "seed", 0)),
        versions=versions(),
    )
