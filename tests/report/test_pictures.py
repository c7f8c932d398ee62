"""A drawing of a tree shows every node once; in a time line every span is a bar in its row."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Circle
from PIL import Image

from specexp.builders import Chain, TokenRecyclingTree
from specexp.core.tree import ROOT_ONLY, TreeShape
from specexp.report.pictures import SPANS, draw_time_line, draw_trees, lay_out, new_figure, png
from specexp.scheduling.timeline import TimeLine


def bush(leaves):
    return TreeShape.from_rank_paths([[rank] for rank in range(leaves)])


def check_whole(axes, shape):
    """Every node is a circle inside the axes, named by its rank."""
    circles = [patch for patch in axes.patches if isinstance(patch, Circle)]
    assert len(circles) == shape.num_nodes + 1
    ranks = [text.get_text() for text in axes.texts if "%" not in text.get_text()]
    assert ranks == ["root", *map(str, shape.ranks[1:])]
    places = np.array([circle.center for circle in circles])
    reach = np.array([[circle.radius] for circle in circles])
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert (places - reach >= [left, bottom]).all()
    assert (places + reach <= [right, top]).all()


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "shape",
    [ROOT_ONLY, bush(4), Chain(length=8).shape, TokenRecyclingTree().shape],
    ids=["root", "bush", "chain", "80"],
)
def test_every_node_is_drawn_and_named_by_its_rank(shape, tmp_path):
    figure = draw_trees([(shape, "a tree")], "A tree", {}, "share")
    check_whole(*figure.axes, shape)
    figure.savefig(tmp_path / "tree.png")
    pixels = np.asarray(Image.open(tmp_path / "tree.png").convert("L"))
    assert pixels.std() > 0
    assert (pixels[:, [0, -1]] == 255).all(), "something is cut off at the side"


def test_trees_are_drawn_side_by_side_and_whole():
    shapes = [bush(count) for count in (2, 90, 20, 3)]
    panels = [(shape, f"tree {number}") for number, shape in enumerate(shapes)]
    figure = draw_trees(panels, "Trees", {(0,): 0.5}, "share")
    assert len(figure.axes) == 4
    for axes, shape in zip(figure.axes, shapes, strict=True):
        check_whole(axes, shape)


def test_hit_rates_are_written_below_their_nodes():
    shape = TreeShape.from_rank_paths([[0], [1], [2], [0, 0]])
    rates = {(0,): 0.613, (1,): 0.004, (2,): 0.0001, (0, 0): 0.25}
    (axes,) = draw_trees([(shape, "a tree")], "A tree", rates, "share").axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["root", "0", "61%", "1", ".4%", "2", "0%", "0", "25%"]


def test_nodes_of_a_depth_do_not_overlap_and_parents_are_above_their_children():
    shape = TokenRecyclingTree().shape
    x = lay_out(shape)
    assert shape.max_depth > 1
    for depth in range(1, shape.max_depth + 1):
        assert (np.diff(np.sort(x[shape.depths == depth])) >= 1 - 1e-9).all()
    for node, children in enumerate(shape.children):
        if children:
            assert x[list(children)].min() <= x[node] <= x[list(children)].max()


def test_a_figure_is_laid_out_in_plain_axes_with_a_broken_title() -> None:
    figure, [[left, _]] = new_figure(2, 2, "a title that is far too long for two inches", 1, 2, sharey=True)
    assert "\n" in figure.get_suptitle()
    assert not left.spines["top"].get_visible()
    assert png(figure).startswith(b"\x89PNG")


def scheduled(passes=4, milliseconds=10):
    """Two drafters that take turns; the target works without a pause."""
    line, length = TimeLine(), milliseconds / 1000
    for number in range(passes):
        who, sequence, start = f"draft {number % 2 + 1}", "ab"[number % 2], 100 + number * length
        line.add(who, "draft", start - length / 2, start, sequence, 3)
        line.add("target", "target", start, start + 0.8 * length, sequence, 4, number)
        line.add("target", "resample", start + 0.8 * length, start + length, sequence, 1, number)
    return line


def bars_of(axes, what):
    """Boxes of all bars of a kind: x from and to, row."""
    color = to_rgba(SPANS[what][0])
    return [
        (path.vertices[:, 0].min(), path.vertices[:, 0].max(), round(path.vertices[:4, 1].mean()))
        for bars in axes.collections
        if tuple(bars.get_facecolor()[0]) == color
        for path in bars.get_paths()
    ]


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def test_a_span_is_a_bar_in_its_row_and_a_pass_names_the_draft_it_verifies(tmp_path):
    """In ms from the start of the run, which began with the first draft at 99.995 s."""
    figure = draw_time_line({"scheduled": scheduled()}, "One run")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Target", "Draft 1", "Draft 2"]
    assert bars_of(axes, "target") == [(pytest.approx(at), pytest.approx(at + 8), 0) for at in (5, 15, 25, 35)]
    assert [row for *_, row in bars_of(axes, "draft")] == [1, 1, 2, 2]
    assert len(bars_of(axes, "resample")) == 4
    assert bars_of(axes, "verify") == []
    assert [text for text in texts_of(axes) if text in "12"] == ["1", "2", "1", "2"]
    (legend,) = figure.legends
    labels = ["target pass", "verify, resample after a rejection", "draft"]
    assert [text.get_text() for text in legend.get_texts()] == labels, "only these spans exist"
    figure.savefig(tmp_path / "line.png")
    (axes,) = draw_time_line({"scheduled": scheduled(passes=400)}, "Passes too short to number").axes
    assert not [text for text in texts_of(axes) if text in "12"]


def test_panels_share_their_axis_and_each_states_the_share_of_its_whole_run():
    short, long = scheduled(passes=2), scheduled(passes=8)
    first, second = draw_time_line({"short": short, "long": long}, "Two runs").axes
    assert first.get_xlim() == second.get_xlim() == (0, pytest.approx(1000 * long.seconds))
    assert f"target busy {100 * short.utilisation():.0f} %,  run 25 ms" in texts_of(first)
    assert [any("done" in text for text in texts_of(axes)) for axes in (first, second)] == [True, False]
