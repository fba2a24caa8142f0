"""Build the trace of an answer from the records of its generation."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from heal.analysis.alternatives import NONE
from heal.measured import Measured, TokenValues, measured
from heal.methods.base import Handle, Method
from heal.patches import patches_of
from heal.request import Request
from heal.trace import Trace
from heal.trace_parts import TracedImage, VisualSpan

if TYPE_CHECKING:
    from heal.vlm import VLM

CONTEXT = 4
"""Number of tokens before an alternative that are decoded with it: a character has up to four bytes."""
PACKAGES = ("heal-mllm", "torch", "transformers", "numpy")


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds. Joined, the pieces are the whole text.

    A token decoded alone may lose its leading space, and an incomplete character adds nothing until it is complete.
    """
    found, before = [], ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[:end]), clean_up_tokenization_spaces=False)
        whole = not text.endswith("\ufffd")
        found.append(text[len(before) :] if whole else "")
        before = text if whole else before
    return tuple(found)


def alternative_pieces(
    tokenizer: Any, ids: Sequence[int], alternatives: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], ...]:
    """The text that each alternative would add in the place of the token at its step."""
    return tuple(
        tuple(_added(tokenizer, ids[max(0, step - CONTEXT) : step], other) for other in own if other != NONE)
        for step, own in enumerate(alternatives)
    )


def _added(tokenizer: Any, before: Sequence[int], token: int) -> str:
    """The text that a token adds to the tokens before it. The rest of an incomplete character counts as its text."""
    known, whole = (
        tokenizer.decode([*before, *more], clean_up_tokenization_spaces=False) if before or more else ""
        for more in ([], [token])
    )
    return str(whole[len(known.rstrip("\ufffd")) :])


@dataclass(frozen=True, eq=False)
class Generated:
    """The tokens of one answer, its prompt, and what was measured at the tokens."""

    tokens: TokenValues
    request: Request
    measured: Measured
    row: int = 0
    """Its row in the batch."""
    steps: Sequence[int] = ()
    """The steps of the generation at which its tokens were chosen."""

    @property
    def ids(self) -> list[int]:
        return list(self.tokens.ids)


def measurements(handle: Handle, tokens: TokenValues) -> Measured:
    """What the attached method measured at these tokens of the latest generation."""
    generation = handle.attachment.latest
    return measured(None if generation is None else generation.state, handle.attachment.layout, tokens)


def build_trace(vlm: VLM, handle: Handle, method: Method, generated: Generated) -> Trace:
    """The trace of an answer. Missing values are NaN, and missing types unknown."""
    layout, ids = handle.attachment.layout, generated.ids
    found = vars(generated.measured)
    return Trace(
        **found,
        synergy=found["total"] - found["visual"] - found["language"],
        token_ids=np.array(ids, dtype=np.int64),
        tokens=pieces(vlm.tokenizer, ids),
        alternative_tokens=alternative_pieces(vlm.tokenizer, ids, found["alternatives"].tolist()),
        text=vlm.tokenizer.decode(ids, skip_special_tokens=True).strip(),
        config={"method": method.name, "model": vlm.name, **method.options(), **handle.runtime.facts()},
        seed=int(getattr(method, "seed", 0)),
        versions=versions(),
        patches=patches_of(handle, generated.request, generated.row, generated.steps),
        **_prompt(generated.request, generated.tokens.sample, layout.visual_ids),
    )


def _prompt(request: Request, row: int, visual_ids: frozenset[int]) -> dict[str, Any]:
    """The fields of a trace that describe the prompt."""
    source, mask = request.source, request.arguments["attention_mask"][row].bool()
    ids = request.arguments["input_ids"][row][mask].tolist()
    images, text = source.images[row], source.texts[row]
    groups = _placeholders(text, getattr(source.processor, "image_token", None))
    return {
        "prompt": text,
        "messages": request.messages[row],
        "images": tuple(map(TracedImage.of, images)),
        "visual_positions": visual_spans([i in visual_ids for i in ids], groups, [i.size for i in images]),
        "prompt_tokens": len(ids),
    }


def visual_spans(
    visual: Sequence[bool], placeholders: Sequence[int], sizes: Sequence[tuple[int, int]]
) -> tuple[VisualSpan, ...]:
    """Runs of visual tokens, each with its image if it can be determined.

    `placeholders` are the lengths of the runs of adjacent image placeholders in the text, `sizes` the image sizes. A
    processor may create several runs for one image, or one run for several images. Adjacent images can be separated
    if they have the same size, because they have the same number of tokens then.
    """
    edges = np.flatnonzero(np.diff(np.array([False, *visual, False], dtype=np.int8))).tolist()
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    if len(sizes) == 1:
        return tuple(VisualSpan(start, stop, 0) for start, stop in runs)
    if sum(placeholders) != len(sizes) or len(placeholders) != len(runs):
        return tuple(VisualSpan(start, stop) for start, stop in runs)
    found: list[VisualSpan] = []
    first = 0
    for (start, stop), count in zip(runs, placeholders, strict=True):
        each, rest = divmod(stop - start, count)
        if rest or len(set(sizes[first : first + count])) > 1:
            found.append(VisualSpan(start, stop))
        else:
            found += [VisualSpan(start + i * each, start + (i + 1) * each, first + i) for i in range(count)]
        first += count
    return tuple(found)


def _placeholders(text: str, token: str | None) -> list[int]:
    """The lengths of the runs of adjacent image placeholders in a text."""
    return (
        [len(found.group()) // len(token) for found in re.finditer(f"(?:{re.escape(token)})+", text)] if token else []
    )
