"""Reordering moves rows and nothing else; block counts are those of the mask itself."""

import numpy as np
from helpers.made_records import outcome_of, report_of, strategy

from experiments.papers.dyspec.token_order import TreeReorder, block_count, value_order
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


# --- The tables -----------------------------------------------------------------------------------------------------

TWO_CHAINS = [-1, 0, 0, 1, 2, 3, 4, 5]  # built breadth first, each chain in every other row


def small(**settings):
    analysis = TreeReorder()
    for name, value in {"block": 2, "prefixes": (0, 2, 4), "random_trees": 1, **settings}.items():
        setattr(analysis, name, value)
    return analysis


def reordered(*outcomes, **settings):
    return report_of(
        small(**settings), *outcomes, parts=strategy(Greedy())._replace(builder=DySpecGreedy(768))
    )


def test_blocks_of_the_runs_trees_over_the_prefix():
    rows = reordered(outcome_of(TWO_CHAINS, [1])).tables["tree_reorder_real"].records()
    assert [row["prefix"] for row in rows] == [0, 2, 4]
    # 4 block rows: the whole triangle, 4 more a column
    assert [row["as built"] for row in rows] == [10, 14, 18]
    assert [row["depth-first"] for row in rows] == [9, 13, 17]
    assert {row["heap order"] for row in rows} == {None}  # no draft probabilities
    assert {row["mean nodes"] for row in rows} == {7}


def test_the_heaps_order_needs_values():
    values = [1, 0.9, 0.1, 0.81, 0.05, 0.729, 0.025, 0.6561]
    row = reordered(outcome_of(TWO_CHAINS, [1], values=values)).tables["tree_reorder_real"].records()[0]
    assert row["heap order"] == 9  # the likelier chain first
    assert row["as built"] == 10


def test_the_papers_figures_stand_beside_trees_of_their_size():
    steps = [outcome_of([-1, *range(40)], [1])]
    table = reordered(*steps, block=32).tables["tree_reorder_real"].to_markdown()
    assert "paper (not run here)" in table
    assert "366.12" in table
    assert "218.31" in table
