"""Reordering moves rows and nothing else; blocks are those of the mask."""

import numpy as np
import pytest
from helpers.drawn_trees import random_shape
from helpers.examples import examples
from helpers.made_records import outcome_of, report_of, strategy
from hypothesis import given, strategies as st

from experiments.papers.dyspec.block_attention import TreeReorder, block_count, permuted, value_order
from specexp.builders import DySpecGreedy
from specexp.core.tree import ROOT_ONLY, TokenTree, TreeShape
from specexp.verifiers import Greedy

pytestmark = pytest.mark.unit


def test_a_chain_fills_the_triangle_and_a_star_two_edges():
    chain = TreeShape(np.arange(-1, 255), [-1] + [0] * 255)
    star = TreeShape([-1] + [0] * 255, np.arange(-1, 255))
    assert block_count(chain) == 8 * 9 // 2
    assert block_count(star) == 8 + 7
    assert block_count(chain, prefix=64) == 8 * 9 // 2 + 8 * 2
    assert block_count(ROOT_ONLY) == 1


def test_the_heap_order_is_that_of_falling_value():
    tree = TokenTree(TreeShape([-1, 0, 0, 1], [-1, 0, 1, 0]), np.arange(4), values=np.array([1, 0.9, 0.05, 0.81]))
    assert value_order(tree) == (0, 1, 3, 2)


TWO_CHAINS = [-1, 0, 0, 1, 2, 3, 4, 5]  # built breadth first, each chain in every other row


def reordered(*outcomes, **settings):
    """Rows of the table of the run's trees, in blocks of two unless ``settings`` have others."""
    analysis = TreeReorder()
    for name, value in {"block": 2, "prefixes": (0, 2, 4), **settings}.items():
        setattr(analysis, name, value)
    parts = strategy(Greedy())._replace(builder=DySpecGreedy(768))
    return report_of(analysis, *outcomes, parts=parts).tables["tree_reorder_real"].records()


def test_blocks_of_the_runs_trees_over_the_prefix():
    rows = reordered(outcome_of(TWO_CHAINS, [1]))
    assert [row["prefix"] for row in rows] == [0, 2, 4]
    # 4 block rows: the whole triangle, 4 more a column
    assert [row["as built"] for row in rows] == [10, 14, 18]
    assert [row["depth-first"] for row in rows] == [row["heavy path"] for row in rows] == [9, 13, 17]
    assert {row["heap order"] for row in rows} == {None}  # no draft probabilities
    assert {row["mean nodes"] for row in rows} == {7}


def test_the_heaps_order_needs_values():
    values = [1, 0.9, 0.1, 0.81, 0.05, 0.729, 0.025, 0.6561]
    row = reordered(outcome_of(TWO_CHAINS, [1], values=values))[0]
    assert row["heap order"] == 9  # the likelier chain first
    assert row["as built"] == 10


@examples(30)
@given(rows=st.integers(1, 40), prefix=st.integers(0, 9), block=st.integers(1, 8), seed=st.integers(0, 99))
def test_blocks_are_those_of_the_mask_with_a_visible_key(rows, prefix, block, seed):
    shape = random_shape(rows, np.random.default_rng(seed))
    mask = np.hstack([np.ones((rows, prefix), dtype=bool), shape.ancestor_mask])
    seen = {(row // block, key // block) for row, key in np.argwhere(mask).tolist()}
    assert block_count(shape, block, prefix) == len(seen)


def test_depth_first_order_leaves_fewer_blocks():
    shape = random_shape(64, np.random.default_rng(0))
    assert block_count(permuted(shape, shape.depth_first), 8) < block_count(shape, 8)


@pytest.mark.parametrize(("rows", "built", "reordered"), [(256, 36.0, 22.5), (512, 135.5, 52.8)])
def test_random_trees_have_the_blocks_of_table_5(rows, built, reordered):
    shapes = [random_shape(rows, np.random.default_rng([seed, rows])) for seed in range(20)]
    counts = [(block_count(one), block_count(permuted(one, one.depth_first))) for one in shapes]
    assert np.mean(counts, axis=0) == pytest.approx([built, reordered], rel=0.1)
