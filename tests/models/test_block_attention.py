"""Attention by blocks is attention: what lies in empty blocks has no weight, and is not touched."""

import numpy as np
import pytest
import torch
from helpers.examples import examples
from hypothesis import given, strategies as st

from experiments.papers.dyspec.token_order import block_count, order_of, random_shape
from specexp.core.tree import TreeShape
from specexp.models.block_attention import BlockMask


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


def test_numbers_in_empty_blocks_do_not_matter():
    """Row 0 sees key 0 alone, so that with blocks of one the other keys may be anything."""
    mask = BlockMask(torch.eye(3, dtype=torch.bool), block=1)
    values = torch.tensor([[[1.0], [2.0], [3.0]]])
    keys = torch.full((1, 3, 1), torch.nan)
    keys[0, 0] = 0.0
    given = mask.attention(torch.zeros(1, 3, 1), keys, values)
    assert given[0, 0, 0] == 1.0
    assert mask.blocks == 3


def test_depth_first_order_leaves_fewer_blocks_and_the_same_output():
    shape = random_shape(64, np.random.default_rng(0))
    order = list(order_of(shape, "depth-first"))
    queries, keys, values = torch.randn(3, 2, 64, 8, generator=torch.Generator().manual_seed(0))
    made, sorted_ = (BlockMask(visible(one), 8) for one in (shape, shape.permute(order)))
    assert sorted_.blocks < made.blocks
    given = sorted_.attention(queries[:, order], keys[:, order], values[:, order])
    assert torch.allclose(given, made.attention(queries, keys, values)[:, order], atol=1e-5)


def test_a_row_that_sees_nothing_is_refused():
    with pytest.raises(ValueError, match="sees nothing"):
        BlockMask(torch.tensor([[True, False], [False, False]]))


def test_a_chain_has_the_blocks_of_a_causal_mask():
    chain = TreeShape(range(-1, 7), [-1] + [0] * 7)
    assert BlockMask(visible(chain), 4).blocks == 3
