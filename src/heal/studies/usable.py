"""Which methods can be used with a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from PIL import Image

from heal.bench.run.answering import SAMPLE_ERRORS
from heal.errors import HealError, HealWarning, first_line
from heal.methods import Method
from heal.vlm import VLM

SIDE = 96
PROMPT = "Please describe this image in detail."


def usable(vlm: VLM, methods: Mapping[str, Method | None]) -> tuple[dict[str, Method | None], dict[str, str]]:
    """The methods that answer a question about a grey image, and why the others do not.

    Some models are refused when a method is attached, others during the first pass.
    """
    found: dict[str, Method | None] = {}
    refused: dict[str, str] = {}
    for name, method in methods.items():
        try:
            if method is not None:
                _answer(vlm, method)
        except SAMPLE_ERRORS:
            pass  # of this image; other images may work
        except HealError as error:
            refused[name] = first_line(error)
            continue
        found[name] = method
    return found, refused


def _answer(vlm: VLM, method: Method) -> None:
    image = Image.new("RGB", (SIDE, SIDE), "grey")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HealWarning)  # two tokens may be too few for a change
        vlm.generate([image], [PROMPT], method=method, do_sample=False, max_new_tokens=2)
