"""The pictures of a yardstick and of several devices show what was found."""

import numpy as np
import pytest
from helpers.fake_turns import LIMIT, recorded_turn
from matplotlib.patches import Circle

from specexp.core.latency import LatencyProfile
from specexp.core.messages import counted
from specexp.core.tree import TreeShape
from specexp.replay.play.ranks import MISSED, RankTable
from specexp.replay.play.yardstick import yardstick
from specexp.replay.what_if.devices import compare
from specexp.replay.what_if.devices_picture import Panel, draw_budgets, draw_trees
from specexp.sweep.goodput_picture import SearchedTree, draw_goodput

CHEAP = LatencyProfile("cheap", {1: 10.0, 32: 12.0}, {1: 0.5})
DEAR = LatencyProfile("dear", {1: 10.0, 32: 90.0}, {1: 2.0})
LIMITS = {"max_nodes": 8, "max_depth": 3}


@pytest.fixture(scope="module")
def table():
    ranks = np.random.default_rng(0).choice([MISSED, 0, 1, 2, 3], 40, p=[0.1, 0.5, 0.2, 0.1, 0.1]).tolist()
    return RankTable([recorded_turn(ranks)], 40, LIMIT)


@pytest.fixture(scope="module")
def found(table):
    return yardstick(table, DEAR, **LIMITS)


def drawn_at(axes, marker):
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == marker]


def test_yardstick_winner_knee_and_plain_decoding_stand_where_they_belong(found):
    searched = SearchedTree("study", 5, 1.02 * found.best.goodput)
    axes = draw_goodput(found, searched).axes[0]
    assert drawn_at(axes, "D") == [(found.most_hit.nodes, found.most_hit.goodput)]
    assert drawn_at(axes, "^") == [(found.sequoia.nodes, found.sequoia.goodput)]
    assert drawn_at(axes, "*") == [(5, searched.goodput)]
    assert any("102.0 % of the yardstick" in label for label in axes.get_legend_handles_labels()[1])
    texts = " ".join(text.get_text() for text in axes.texts)
    assert f"knee: {counted(found.knee.nodes, 'node')}," in texts
    assert f"plain decoding: {found.plain_goodput:.4g}" in texts
    assert found.profile in texts
    low, high = axes.get_ylim()
    assert low < found.plain_goodput < high
    assert searched.goodput < high


def test_every_device_has_a_curve_and_a_star_on_it(table):
    comparison = compare(table, [CHEAP, DEAR], composition="DraftModel + StaticTree", **LIMITS)
    axes = draw_budgets(comparison).axes[0]
    assert [y for _, y in drawn_at(axes, "*")] == pytest.approx([100, 100])
    assert [x for x, _ in drawn_at(axes, "*")] == [
        device.best.shape.num_nodes for device in comparison.devices
    ]


@pytest.mark.parametrize("leaves", [3, 90])
def test_trees_stand_side_by_side_and_are_whole(leaves):
    shapes = [TreeShape.from_rank_paths([[rank] for rank in range(count)]) for count in (2, leaves, 20)]
    panels = [Panel(shape, f"tree {number}", "facts") for number, shape in enumerate(shapes)]
    figure = draw_trees(panels, {(0,): 0.5}, "Trees")
    assert len(figure.axes) == 3
    for axes, shape in zip(figure.axes, shapes, strict=True):
        circles = [patch for patch in axes.patches if isinstance(patch, Circle)]
        assert len(circles) == shape.num_nodes + 1
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        places = np.array([circle.center for circle in circles])
        reach = np.array([[circle.radius] for circle in circles])
        assert (places - reach >= [left, bottom]).all()
        assert (places + reach <= [right, top]).all()
