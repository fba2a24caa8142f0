"""A table of figures above other views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heal.errors import ConfigError
from heal.view.format import head


def summary_data(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    notes: Sequence[str] = (),
    below: Sequence[str] = (),
) -> dict[str, Any]:
    """The data of a summary, plain JSON (docs/view.md): a table of strings with a line for each row.

    The first cell of a row is its name. `notes`: lines above the table. `below`: small lines below it.
    """
    for row in rows:
        if len(row) != len(headings):
            raise ConfigError(f"the row {list(row)} has {len(row)} cells, but there are {len(headings)} headings")
    return head("summary", title) | {
        "notes": list(notes),
        "headings": list(headings),
        "rows": [list(row) for row in rows],
        "below": list(below),
    }
