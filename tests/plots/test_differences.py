import numpy as np
import pytest

from heal.bench.score.bootstrap import Interval
from heal.plots.differences import Panel, differences

NAN = float("nan")


def test_one_line_per_method_in_every_panel():
    panels = [
        Panel("A", True, {"x": Interval(-2.0, -3.0, -1.0), "y": Interval(1.0, -1.0, 3.0)}),
        Panel("B", False, {"y": Interval(0.5, NAN, NAN), "z": Interval(NAN, NAN, NAN)}),
    ]
    figure = differences(panels, ["y"])
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["x", "y", "z"]
    assert left.get_xlabel() == "difference to plain (lower is better)"
    assert right.get_xlabel() == "difference to plain (higher is better)"
    lines = left.lines[1:]
    assert [np.asarray(line.get_xdata(), float)[0] for line in lines] == [-3, -2, -1, 1]
    filled = [line.get_markerfacecolor() for line in lines if line.get_marker() == "o"]
    assert filled[0] != "white"
    assert filled[1] == "white"
    assert len(right.lines) == 2  # a point without an interval, and nothing for z


@pytest.mark.parametrize("panels", [[], [Panel("A", True, {})]])
def test_nothing_to_draw(panels):
    assert differences(panels).axes
