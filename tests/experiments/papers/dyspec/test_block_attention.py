"""Attention by blocks equals dense attention; its times stand next to the whole mask's."""

import numpy as np
import torch
from helpers.examples import examples
from hypothesis import given, strategies as st

from experiments.papers.dyspec.block_attention import BlockAttention, BlockMask
from experiments.papers.dyspec.token_order import block_count, permuted, random_shape


def test_blocks_and_times_of_both_orders_stand_beside_the_whole_mask():
    analysis = BlockAttention()
    analysis.rows, analysis.heads, analysis.head_dim, analysis.block = [32, 64], 1, 8, 8
    analysis.trees, analysis.repeats = 2, 3
    _, row = analysis.report([]).tables["block_attention"].records()
    assert row["blocks, depth-first"] < row["blocks, unordered"] <= 8 * 9 / 2
    assert row["unordered over depth-first"] == row["unordered"] / row["depth-first"]
    assert row["whole mask"] > 0
    assert row["published"] is None


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
