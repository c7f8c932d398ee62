"""Candidates are the most-hit trees, and the pictures show the best of every device and budget."""

from functools import cache

import numpy as np
import pytest
from helpers.examples import examples
from helpers.fake_turns import LIMIT, recorded_turn
from hypothesis import given, strategies as st
from matplotlib.patches import Circle

from specexp.core.latency import LatencyProfile
from specexp.core.tree import TreeShape
from specexp.replay.advice.what_if_report import compare, draw_trees
from specexp.replay.play.ranks import MISSED, RankTable

CHEAP = LatencyProfile("cheap", {1: 10.0, 32: 12.0}, {1: 0.5})
DEAR = LatencyProfile("dear", {1: 10.0, 32: 90.0}, {1: 2.0})
LIMITS = {"max_nodes": 8, "max_depth": 3}


@pytest.fixture(scope="module")
def table():
    ranks = np.random.default_rng(0).choice([MISSED, 0, 1, 2, 3], 40, p=[0.1, 0.5, 0.2, 0.1, 0.1]).tolist()
    return RankTable([recorded_turn(ranks)], 40, LIMIT)


@pytest.mark.parametrize("leaves", [3, 90])
def test_trees_stand_side_by_side_and_are_whole(leaves):
    shapes = [TreeShape.from_rank_paths([[rank] for rank in range(count)]) for count in (2, leaves, 20)]
    panels = [(shape, f"tree {number}") for number, shape in enumerate(shapes)]
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


@cache
def all_trees(nodes, width=3, depth=3):
    """Every tree of so many nodes, each as a sorted tuple of rank paths."""
    if nodes == 0:
        return {()}
    return {
        tuple(sorted((*tree, (*parent, rank))))
        for tree in all_trees(nodes - 1, width, depth)
        for parent in ((), *tree)
        for rank in range(width)
        if len(parent) < depth and (*parent, rank) not in tree
    }


RANKS = st.lists(st.sampled_from([MISSED, 0, 0, 1, 1, 2]), min_size=4, max_size=20)


@given(RANKS)
@examples(20)
def test_a_candidate_of_every_size_is_hit_as_often_as_any_tree(ranks):
    table = RankTable([recorded_turn(ranks)], len(ranks), LIMIT)
    hits = table.hits(3)
    for place, rank in enumerate(ranks[:-1]):  # nothing is drafted for the last token
        assert rank == MISSED or hits[(rank,)] == ranks[:-1].count(rank), place
    found = compare(table, [CHEAP], composition="DraftModel + StaticTree", max_nodes=4, max_depth=3)
    for nodes in range(1, min(4, len(hits)) + 1):
        worth = [
            sum(hits[path] for path in tree.shape.rank_paths[1:])
            for tree in found.trees
            if tree.shape.num_nodes == nodes
        ]
        assert max(worth) == max(sum(hits[path] for path in tree) for tree in all_trees(nodes))
