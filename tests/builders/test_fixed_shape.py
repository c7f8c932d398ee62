"""A shape that comes again: what is asked of a drafter to fill it, and the parts a plan leaves of it."""

import numpy as np
from core.test_tree import shapes as any_shapes
from hypothesis import given, strategies as st

from specexp.builders.static_tree import FixedShape


def shapes():
    return any_shapes().map(lambda shape: FixedShape(shape.parents, shape.ranks))


@given(shapes())
def test_levels_ask_every_parent_once_and_fill_every_node_once(shape):
    filled = [0]
    for depth, level in enumerate(shape.levels, start=1):
        assert (shape.depths[level.rows] == depth).all()
        assert (shape.parents[level.rows] == level.parents[level.parent_index]).all()
        assert len(set(level.parents.tolist())) == level.parents.size
        assert level.candidates == shape.ranks[level.rows].max() + 1
        assert set(level.parents.tolist()) <= set(filled)
        filled += level.rows.tolist()
    assert sorted(filled) == list(range(shape.num_nodes + 1))


@given(shapes(), st.integers(0, 8))
def test_up_to_depth_keeps_exactly_the_shallow_rows(shape, depth):
    part = shape.up_to_depth(depth)
    assert sorted(part.rank_paths) == sorted(path for path in shape.rank_paths if len(path) <= depth)


@given(shapes(), st.integers(0, 30))
def test_first_nodes_keeps_a_prefix_of_the_rows(shape, nodes):
    assert shape.first_nodes(nodes).rank_paths == shape.rank_paths[: nodes + 1]


@given(shapes(), st.integers(0, 30))
def test_a_part_that_comes_again_is_made_once(shape, nodes):
    keep = np.arange(shape.num_nodes + 1) <= nodes
    assert shape.select(keep) is shape.select(keep)
    assert shape.select(keep).recurs
    assert shape.up_to_depth(2) is shape.up_to_depth(2)
