import math

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from PIL import Image

from heal import VLM
from heal.analysis.taxonomy import HeadType
from heal.bench.score.bootstrap import Interval
from heal.errors import ConfigError
from heal.plots import head_map, mix_over_tokens, save
from heal.plots.cost import Point, panels, quality_against_cost
from heal.plots.heads import COLOURS
from heal.plots.mix import WRONG, Marked, as_marked
from heal.plots.trade import curves, trade_off
from heal.studies.comparison import ComparisonRow


def heights(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_ydata(), float)


def test_cells_have_the_colour_of_their_type():
    kinds = list(COLOURS)
    types = np.array([[int(kinds[(i + j) % len(kinds)]) for j in range(8)] for i in range(3)], np.uint8)
    axes = head_map(types).axes[0]
    mesh = axes.collections[0]
    mesh.update_scalarmappable()
    found = np.asarray(mesh.get_facecolor())[:, :3].reshape(3, 8, 3)
    for layer, head in np.ndindex(3, 8):
        expected = to_rgb(COLOURS[HeadType(int(types[layer, head]))])
        np.testing.assert_allclose(found[layer, head], expected, atol=1e-6)
    assert axes.yaxis_inverted()


def test_legend_counts_the_heads():
    types = np.array([[2, 4, 4], [4, 3, 2]], np.uint8)
    texts = [t.get_text() for t in head_map(types).legends[0].get_texts()]
    assert sorted(texts) == ["language 1", "synergy 3", "visual 2"]


@pytest.fixture(scope="module")
def trace():
    vlm = VLM.random()
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    return vlm.generate(picture, "describe", trace=True, max_new_tokens=8).trace


def test_line_is_the_mean_share_and_hallucinations_are_red(trace):
    figure = mix_over_tokens({"plain": Marked(trace, correct=[1], hallucinated=[3, 99])}, equilibrium=0.5)
    (axes,) = figure.axes
    np.testing.assert_allclose(heights(axes.lines[0]), trace.mean_alpha())
    good, bad = axes.collections[:2]
    assert np.asarray(good.get_offsets())[:, 0].tolist() == [1]
    assert np.asarray(bad.get_offsets())[:, 0].tolist() == [3]
    np.testing.assert_allclose(np.asarray(bad.get_facecolor())[0, :3], to_rgb(WRONG), atol=1e-6)
    assert axes.get_xticklabels()[3].get_color() == WRONG
    assert heights(axes.lines[1])[0] == 0.5


def test_one_panel_per_answer(trace):
    assert len(mix_over_tokens({"plain": Marked(trace), "heal": Marked(trace)}).axes) == 2


def test_saving_leaves_no_other_files(tmp_path):
    path = save(head_map(np.full((2, 2), 4, np.uint8)), tmp_path / "new" / "map.png")
    with Image.open(path) as image:
        assert image.size[0] > 100
    assert [p.name for p in path.parent.iterdir()] == ["map.png"]


def test_saved_figures_are_deterministic(tmp_path):
    first, second = (
        save(head_map(np.full((2, 2), 4, np.uint8)), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg")
    )
    assert first == second
    assert b"<svg" in first


def test_one_panel_per_figure_with_intervals():
    found = {"POPE F1": Interval(80.0, 78.0, 82.0)}
    plain = ComparisonRow("plain", found, {}, math.nan, 0, None)
    slow = ComparisonRow("vcd", found | {"Recall": Interval(70.0, 69.0, 71.0)}, {}, 2.5, 0, True)
    drawn = panels([plain, slow])
    assert drawn == {
        "POPE F1": [Point("plain", 1.0, 80.0, 78.0, 82.0), Point("vcd", 2.5, 80.0, 78.0, 82.0)],
        "Recall": [Point("vcd", 2.5, 70.0, 69.0, 71.0)],
    }
    axes = quality_against_cost(drawn).axes
    assert [a.get_title() for a in axes] == ["POPE F1", "Recall"]
    assert [t.get_text() for t in axes[0].texts] == ["plain", "vcd"]


def test_settings_of_a_method_form_one_line():
    def line(name, recall, chair_s):
        figures = {"Recall": Interval(recall, 0.0, 100.0), "CHAIR_s ↓": Interval(chair_s, 0.0, 100.0)}
        return ComparisonRow(name, figures, {}, 1.0, 0, None)

    table = [line("plain", 80.0, 35.0), line("vcd 1", 79.0, 30.0), line("vcd 2", 75.0, 25.0)]
    found = curves([*table, line("heal one-sided 1", 80.0, 28.0), line("heal one-sided 2", 79.0, 26.0)])
    assert found == {
        "plain": [(80.0, 35.0)],
        "vcd": [(79.0, 30.0), (75.0, 25.0)],
        "heal one-sided": [(80.0, 28.0), (79.0, 26.0)],
    }
    (axes,) = trade_off(found).axes
    assert {line.get_label(): list(heights(line)) for line in axes.lines}["vcd"] == [30.0, 25.0]
    assert axes.yaxis_inverted()


def test_trace_without_marks(trace):
    alone, marked = mix_over_tokens({"a": trace}), mix_over_tokens({"a": Marked(trace)})
    one, other = (heights(figure.axes[0].lines[0]) for figure in (alone, marked))
    np.testing.assert_array_equal(one, other)


def test_invalid_arguments_are_explained(trace):
    for wrong, message in (
        (trace, "needs {name: trace"),
        ({}, "not empty"),
        ({"a": [trace]}, "the answer 'a' must be a Trace or Marked.*, not list"),
        ({"a": Marked(trace, (-1,))}, "a mark at a step below 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            as_marked(wrong)
    with pytest.raises(ConfigError, match=r"not a HeadType: .77"):
        head_map(np.array([[2, 77]], np.uint8))
    with pytest.raises(ConfigError, match="no heads to plot"):
        head_map(np.zeros((0, 3), np.uint8))
    with pytest.raises(ConfigError, match="nothing to plot"):
        quality_against_cost({})
