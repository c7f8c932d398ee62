"""A tree is data: its views agree with each other, whatever its form."""

from collections import Counter

import numpy as np
import pytest
from helpers.drawn_shapes import shapes
from hypothesis import given, strategies as st

from specexp.builders import TokenRecyclingTree
from specexp.core.tree import ROOT_ONLY, TokenTree, TreeShape, root_tree

pytestmark = pytest.mark.unit


@given(shapes())
def test_a_row_sees_itself_its_ancestors_and_nothing_else(shape):
    for row in range(shape.num_nodes + 1):
        assert np.flatnonzero(shape.ancestor_mask[row]).tolist() == sorted({0, *shape.path(row)})


@given(shapes())
def test_depth_is_the_length_of_path_and_rank_path(shape):
    for row in range(shape.num_nodes + 1):
        assert shape.depths[row] == len(shape.path(row)) == len(shape.rank_paths[row])
    assert shape.max_depth == max(map(len, shape.rank_paths))


@given(shapes())
def test_rank_paths_round_trip(shape):
    paths = shape.rank_paths[1:]
    again = TreeShape.from_rank_paths(paths)
    assert set(again.rank_paths) == set(shape.rank_paths)
    assert list(again.rank_paths[1:]) == sorted(paths, key=lambda path: (len(path), path))
    assert TreeShape.from_rank_paths(again.rank_paths[1:]).parents.tolist() == again.parents.tolist()


@given(shapes())
def test_depth_first_order_visits_every_subtree_in_one_piece(shape):
    order = list(shape.depth_first)
    assert sorted(order) == list(range(shape.num_nodes + 1))
    place = {row: number for number, row in enumerate(order)}
    for row in range(shape.num_nodes + 1):
        below = np.flatnonzero(shape.ancestor_mask[:, row])
        places = sorted(place[int(under)] for under in below)
        assert places == list(range(place[row], place[row] + len(places)))


@given(shapes(), st.data())
def test_a_selection_has_the_views_of_a_newly_built_shape(shape, data):
    keep = np.ones(shape.num_nodes + 1, dtype=np.bool_)
    for row in range(1, keep.size):
        keep[row] = keep[shape.parents[row]] and data.draw(st.booleans())
    part = shape.select(keep)
    anew = TreeShape(part.parents, part.ranks)
    assert part.rank_paths == tuple(path for path, kept in zip(shape.rank_paths, keep, strict=True) if kept)
    assert part.depths.tolist() == anew.depths.tolist()
    assert part.ancestor_mask.tolist() == anew.ancestor_mask.tolist()


def test_a_selection_that_loses_a_parent_is_refused():
    with pytest.raises(ValueError, match="parent"):
        TreeShape.from_rank_paths([[0], [0, 0], [0, 0, 0]]).select(np.array([True, True, False, True]))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([[0], [0]], r"\[0\] is listed twice"),
        ([[0], []], r"must have ranks >= 0, and at least one"),
        ([[0], [-1]], r"must have ranks >= 0"),
        ([[0], [1, 0]], r"\[1, 0\] has no parent: \[1\] is missing"),
    ],
)
def test_wrong_rank_paths_are_refused_by_name(paths, message):
    with pytest.raises(ValueError, match=message):
        TreeShape.from_rank_paths(paths)


@pytest.mark.parametrize(
    ("parents", "ranks", "message"),
    [
        ([], [], "starts with its root"),
        ([0], [-1], "starts with its root"),
        ([-1, 0], [-1], "ranks must have 2 entries, one per row, got 1"),
        ([-1, 2, 0], [-1, 0, 0], "must be before it"),
        ([-1, 1], [-1, 0], "must be before it"),
        ([-1, -1], [-1, 0], "must be before it"),
    ],
)
def test_wrong_parents_are_refused(parents, ranks, message):
    with pytest.raises(ValueError, match=message):
        TreeShape(parents, ranks)


def test_the_root_alone():
    assert ROOT_ONLY.num_nodes == ROOT_ONLY.max_depth == 0
    assert root_tree(5).tokens.tolist() == [5]
    assert root_tree(5).child_with_token(0, 5) is None


def test_a_child_is_found_by_its_token_below_its_own_parent_only():
    tree = TokenTree(TreeShape.from_rank_paths([[0], [1], [0, 0]]), np.array([9, 4, 5, 6]))
    assert tree.num_nodes == 3
    assert tree.child_with_token(0, 5) == 2
    assert tree.child_with_token(0, 6) is None
    assert tree.child_with_token(1, 6) == 3


def test_the_tree_of_the_papers_figure_5():
    shape = TokenRecyclingTree().shape
    assert shape.num_nodes == 80
    assert np.bincount(shape.depths).tolist() == [1, 8, 21, 25, 15, 8, 3]
    assert sum(not below for below in shape.children) == 40
    assert Counter(shape.ranks[1:].tolist()) == {0: 41, 1: 13, 2: 8, 3: 5, 4: 4, 5: 3, 6: 3, 7: 3}
    assert [len(shape.children[row]) for row in shape.children[0]] == [8, 4, 3, 2, 1, 1, 1, 1]


def test_a_selection_keeps_the_data_of_its_rows():
    tree = TokenTree(
        TreeShape.from_rank_paths([[0], [1], [2], [0, 0], [2, 0]]),  # rows 1, 2, 3, 4, 5
        tokens=np.array([9, 4, 5, 6, 7, 8]),
        log_probs=np.array([0, -1, -2, -3, -4, -5], dtype=np.float32),
        kinds=np.array([0, 2, 2, 2, 2, 0], dtype=np.int8),
        q={0: np.array([1.0]), 1: np.array([2.0])},
        draws={0: (3, 1, 2, 3), 1: (4,)},
        grafted=np.array([False, False, False, False, False, True]),
    )
    part = tree.select(np.array([True, False, True, True, False, False]))
    assert part.shape.rank_paths == ((), (1,), (2,))
    assert part.tokens.tolist() == [9, 5, 6]
    assert part.log_probs.tolist() == [0, -2, -3]
    assert part.kinds.tolist() == [0, 2, 2]
    assert {row: values.tolist() for row, values in part.q.items()} == {0: [1.0]}
    assert part.draws == {0: (2, 1, 2)}
    assert part.grafted is None
    assert tree.select(np.ones(6, dtype=np.bool_)).grafted.tolist() == tree.grafted.tolist()
