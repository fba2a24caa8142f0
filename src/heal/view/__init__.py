"""The interactive view: one self-contained HTML page, and the same as a component for a notebook or an app.

`answer_data`, `run_data` and `summary_data` collect what is shown as plain JSON (docs/view.md); `page` and
`component` turn it into HTML. Reading a run folder needs the extra `eval`, the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heal.view.answer import answer_data
from heal.view.format import FORMAT, VERSION
from heal.view.page import component, page
from heal.view.summary import summary_data

if TYPE_CHECKING:
    from heal.view.run import run_data

__all__ = ["FORMAT", "VERSION", "answer_data", "component", "page", "run_data", "summary_data"]


def __getattr__(name: str) -> Any:
    if name != "run_data":
        raise AttributeError(f"module 'heal.view' has no attribute {name!r}")
    from heal.view.run import run_data

    return run_data
