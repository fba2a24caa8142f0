"""A covering design: in place of every method × every architecture, each of both at least once.

A law that is parametrised over both has one test per pair. `make test` runs a part of them in which every method and
every architecture occurs; each law takes another part, so the laws together reach most pairs. `make test-all` runs
the whole product.
"""

import zlib
from collections.abc import Sequence

import pytest

ARCHITECTURE = "name"
METHOD = ("method", "own", "inputs")
"""Names of test parameters."""


def chosen(first: int, second: int, counts: tuple[int, int], shift: int) -> bool:
    """Whether a pair is in the covering design: a diagonal of the table, wrapped around its shorter side."""
    rows, columns = counts
    if rows >= columns:
        return (first + shift) % columns == second
    return (second + shift) % rows == first


def mark_rest(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of pairs that only run in the full matrix."""
    tables: dict[str, list[tuple[pytest.Item, str, str]]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        given = {} if callspec is None else callspec.params
        method = next((given[name] for name in METHOD if name in given), None)
        if ARCHITECTURE in given and method is not None:
            others = "".join(f"{key}={given[key]}" for key in given if key not in (ARCHITECTURE, *METHOD))
            law = f"{item.nodeid.partition('[')[0]} {others}"
            tables.setdefault(law, []).append((item, str(given[ARCHITECTURE]), str(method)))
    for law, cells in tables.items():
        names = list(dict.fromkeys(name for _, name, _ in cells))
        methods = list(dict.fromkeys(method for _, _, method in cells))
        if len(cells) < len(names) * len(methods) or min(len(names), len(methods)) < 2:
            continue  # no product: a list of pairs that was chosen by hand
        shift = zlib.crc32(law.encode())
        for item, name, method in cells:
            if not chosen(names.index(name), methods.index(method), (len(names), len(methods)), shift):
                item.add_marker(pytest.mark.matrix)
