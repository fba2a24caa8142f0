"""The example notebooks run as they are, cell by cell, and have no stored outputs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))

# in a process of its own, as users run it: without the type checker of the tests
RUN = """
import ast, json, sys
found, shown = {}, []  # the variables, and what each cell displays: the value of its last line
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else ast.parse("None").body[0]
        exec(compile(tree, sys.argv[1], "exec"), found)
        shown.append(eval(compile(ast.Expression(last.value), sys.argv[1], "eval"), found))
"""

FIRST_STEPS = """
from matplotlib.figure import Figure
from PIL import Image
assert isinstance(shown[0], Image.Image)
assert any(isinstance(value, Figure) for value in shown)
assert found["plain"].text != found["calibrated"].text
assert found["calibrated"].fired
assert found["trace"].text == found["calibrated"].text
assert list(shown[-1].index) == ["plain", "heal:alpha=0.5,drift=language", "vcd"]
assert (shown[-1]["correct objects"] > 0).all()
"""


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_every_notebook_is_tested() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first-steps"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_stored(path: Path) -> None:
    for cell in code_cells(path):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_first_steps() -> None:
    command = [sys.executable, "-c", RUN + FIRST_STEPS, str(NOTEBOOKS[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "objects in the scene: " in done.stdout
    assert "synergy" in done.stdout
