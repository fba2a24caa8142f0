"""How an answer and a trace show themselves in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heal.view.answer import answer_data
from heal.view.page import component

if TYPE_CHECKING:
    from heal.generate import Answer
    from heal.trace import Trace

HEIGHT, SHORT = 560, 130
"""Pixels of a cell with and without measurements."""


def cell(shown: Answer | Trace) -> str:
    """The view in an iframe. Scores of single heads are left out where there are very many."""
    data = answer_data(shown, small=True)
    return component(data, HEIGHT if data["answers"][0]["tokens"] else SHORT)
