"""Attention by blocks equals dense attention; reordering moves rows and nothing else; blocks are those of the mask."""

import numpy as np
import torch
from helpers.examples import examples
from helpers.made_records import outcome_of, report_of, strategy
from hypothesis import given, strategies as st

from experiments.papers.dyspec.block_attention import (
    BlockAttention,
    BlockMask,
    TreeAttention,
    TreeReorder,
    block_count,
    heavy_path,
    permuted,
    random_shape,
    value_order,
)
from specexp.builders import DySpecGreedy
from specexp.core.tree import ROOT_ONLY, TokenTree, TreeShape
from specexp.verifiers import Greedy


def test_a_chain_fills_the_triangle_and_a_star_two_edges():
    chain = TreeShape(np.arange(-1, 255), [-1] + [0] * 255)
    star = TreeShape([-1] + [0] * 255, np.arange(-1, 255))
    assert block_count(chain) == 8 * 9 // 2
    assert block_count(star) == 8 + 7
    assert block_count(chain, prefix=64) == 8 * 9 // 2 + 8 * 2
    assert block_count(ROOT_ONLY) == 1


def test_the_heap_order_is_that_of_falling_value():
    tree = TokenTree(
        TreeShape([-1, 0, 0, 1], [-1, 0, 1, 0]), np.arange(4), values=np.array([1, 0.9, 0.05, 0.81])
    )
    assert value_order(tree) == (0, 1, 3, 2)


def test_the_heavy_path_takes_the_largest_subtree_first():
    """Below the root 1 is a leaf and 2 has four nodes, of which 3 has none below it and 4 a chain of two."""
    assert heavy_path(TreeShape([-1, 0, 0, 2, 2, 4], [-1, 0, 1, 0, 1, 0])) == (0, 2, 4, 5, 3, 1)
    assert heavy_path(ROOT_ONLY) == (0,)


TWO_CHAINS = [-1, 0, 0, 1, 2, 3, 4, 5]  # built breadth first, each chain in every other row


def reordered(*outcomes, **settings):
    """Rows of the table of the run's trees, in blocks of two unless ``settings`` have others."""
    analysis = TreeReorder()
    for name, value in {"block": 2, "prefixes": (0, 2, 4), "random_trees": 1, **settings}.items():
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


def test_the_papers_figures_are_below_trees_of_their_size():
    *_, smaller, larger = reordered(outcome_of([-1, *range(40)], [1]), block=32)
    assert (smaller["arm"], smaller["mean nodes"], larger["mean nodes"]) == (
        "paper (not run here)",
        768,
        1024,
    )
    assert (smaller["heap order"], smaller["depth-first"]) == (366.12, 218.31)


def test_a_row_has_blocks_and_times_of_both_orders_and_of_the_whole_mask():
    analysis = BlockAttention()
    analysis.rows, analysis.heads, analysis.head_dim, analysis.block = [32, 64], 1, 8, 8
    analysis.trees, analysis.repeats = 2, 3
    _, row = analysis.report([]).tables["block_attention"].records()
    assert row["blocks, depth-first"] < row["blocks, unordered"] <= 8 * 9 / 2
    assert row["unordered over depth-first"] == row["unordered"] / row["depth-first"]
    assert row["whole mask"] > 0
    assert row["published"] is None


def test_a_runs_trees_have_a_time_ratio_for_each_prefix():
    analysis = TreeAttention()
    analysis.block, analysis.heads, analysis.head_dim, analysis.repeats = 2, 1, 8, 1
    analysis.prefixes = (0, 4)
    values = [1, 0.9, 0.1, 0.81, 0.05, 0.729, 0.025, 0.6561]
    report = report_of(analysis, *[outcome_of(TWO_CHAINS, [1], values=values)] * 2)
    rows = report.tables["tree_attention"].records()
    assert [(row["prefix"], row["trees"]) for row in rows] == [(0, 2), (4, 2)]
    assert all(row["heap order over depth-first"] for row in rows)


def visible(shape, prefix=0):
    tree = torch.from_numpy(shape.ancestor_mask)
    return torch.cat([torch.ones(tree.shape[0], prefix, dtype=torch.bool), tree], dim=1)


@examples(30)
@given(rows=st.integers(1, 40), prefix=st.integers(0, 9), block=st.integers(1, 8), seed=st.integers(0, 99))
def test_it_equals_dense_attention_over_any_tree_behind_any_prefix(rows, prefix, block, seed):
    shape = random_shape(rows, np.random.default_rng(seed))
    mask = visible(shape, prefix)
    torch.manual_seed(seed)
    queries = torch.randn(2, rows, 4, dtype=torch.float64)
    keys, values = torch.randn(2, 2, prefix + rows, 4, dtype=torch.float64)
    dense = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    blocks = BlockMask(mask, block)
    assert torch.allclose(blocks.attention(queries, keys, values), dense, atol=1e-12)
    assert blocks.blocks == block_count(shape, block, prefix)


def test_empty_blocks_are_not_read():
    """Row 0 sees key 0 alone, so that with blocks of one the other keys may be anything."""
    mask = BlockMask(torch.eye(3, dtype=torch.bool), block=1)
    values = torch.tensor([[[1.0], [2.0], [3.0]]])
    keys = torch.full((1, 3, 1), torch.nan)
    keys[0, 0] = 0.0
    assert mask.attention(torch.zeros(1, 3, 1), keys, values)[0, 0, 0] == 1.0


def test_depth_first_order_leaves_fewer_blocks_and_the_same_output():
    shape = random_shape(64, np.random.default_rng(0))
    order = list(shape.depth_first)
    queries, keys, values = torch.randn(3, 2, 64, 8, generator=torch.Generator().manual_seed(0))
    made, moved = (BlockMask(visible(one), 8) for one in (shape, permuted(shape, order)))
    assert moved.blocks < made.blocks
    found = moved.attention(queries[:, order], keys[:, order], values[:, order])
    assert torch.allclose(found, made.attention(queries, keys, values)[:, order], atol=1e-5)
