"""Reordering moves rows and nothing else; block counts are those of the mask itself."""

from dataclasses import replace

import numpy as np
import torch
from helpers.made_records import outcome_of, report_of, strategy
from hypothesis import given, strategies as st

from experiments.papers.dyspec.token_order import TreeReorder, block_count, permuted, value_order
from specexp.builders import DySpecGreedy
from specexp.core.context import Context
from specexp.core.dialogue import Plan
from specexp.core.tree import ROOT_ONLY, NodeKind, TokenTree, TreeShape
from specexp.testing.fakes import DistributionDrafter
from specexp.verifiers import Greedy, RejectionSampling

VOCABULARY = 13


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 24) -> TokenTree:
    """Drawn trees with everything a tree may carry, siblings in no particular order of rows."""
    nodes = draw(st.integers(0, max_nodes))
    parents = [-1, *(draw(st.integers(0, row - 1)) for row in range(1, nodes + 1))]
    ranks = [-1, *range(nodes)]
    shape = TreeShape(parents, ranks)
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    with_children = [row for row in range(nodes + 1) if shape.children[row]]
    draws = {
        row: (*generator.permutation(shape.children[row]).tolist(), shape.children[row][0])
        for row in with_children
        if draw(st.booleans())
    }
    return TokenTree(
        shape,
        np.arange(nodes + 1),  # the row each token was in
        generator.random(nodes + 1, dtype=np.float32) - 1,
        generator.integers(0, 3, nodes + 1).astype(np.int8),
        {row: np.full(2, row, dtype=np.float32) for row in with_children},
        draws,
        generator.random(nodes + 1),
    )


def permuted_tree(tree, rows):
    """The tree with its rows in this order; the children of a node are still tried in the order they were drawn in."""
    taken = np.asarray(rows)
    new_row = np.argsort(taken).tolist()
    shape, draws = permuted(tree.shape, rows), {}
    for row in range(taken.size):
        tried = tuple(new_row[child] for child in tree.draw_order(row))
        if tried != shape.children[new_row[row]]:
            draws[new_row[row]] = tried
    return replace(
        tree,
        shape=shape,
        tokens=tree.tokens[taken],
        log_probs=None if tree.log_probs is None else tree.log_probs[taken],
        kinds=None if tree.kinds is None else tree.kinds[taken],
        q=None if tree.q is None else {new_row[row]: values for row, values in tree.q.items()},
        draws=draws or None,
        values=None if tree.values is None else tree.values[taken],
    )


@given(trees())
def test_a_reordered_tree_says_the_same_of_every_token(tree):
    moved = permuted_tree(tree, tree.shape.depth_first)
    assert sorted(moved.tokens.tolist()) == tree.tokens.tolist()
    for row, token in enumerate(moved.tokens.tolist()):
        assert [moved.tokens[above] for above in moved.shape.path(row)] == list(tree.shape.path(token))
        assert moved.shape.rank_paths[row] == tree.shape.rank_paths[token]
        assert moved.log_probs[row] == tree.log_probs[token]
        assert moved.kind(row) is tree.kind(token)
        assert moved.values[row] == tree.values[token]
        assert [moved.tokens[child] for child in moved.draw_order(row)] == list(tree.draw_order(token))
        assert (row in moved.q) == (token in tree.q)
        assert row not in moved.q or moved.q[row][0] == token


@given(trees(max_nodes=16), st.integers(1, 5), st.integers(0, 11))
def test_the_block_count_is_that_of_the_mask(tree, block, prefix):
    size = tree.num_nodes + 1
    mask = np.hstack((np.ones((size, prefix), dtype=bool), tree.shape.ancestor_mask))
    blocks = [
        mask[row : row + block, column : column + block].any()
        for row in range(0, size, block)
        for column in range(0, prefix + size, block)
    ]
    assert block_count(tree.shape, block, prefix) == sum(blocks)


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


def drawn_tree(builder: DySpecGreedy, drafter: DistributionDrafter, context: Context) -> TokenTree:
    build = builder.build(context.root, Plan())
    request = next(build)
    while True:
        try:
            request = build.send(drafter.propose(context, request))
        except StopIteration as finished:
            return finished.value


def test_rejection_sampling_says_the_same_of_a_reordered_tree():
    generator = np.random.default_rng(0)
    laws = generator.dirichlet(np.full(VOCABULARY, 0.5), size=VOCABULARY)
    drafter, builder = DistributionDrafter(lambda tokens: laws[tokens[-1]]), DySpecGreedy(40)
    verifier, moved, accepted = RejectionSampling(), 0, 0
    for number in range(30):
        context = Context([1, number % VOCABULARY], sequence=number)
        tree = drawn_tree(builder, drafter, context)
        rows = tree.shape.depth_first
        other = permuted_tree(tree, rows)
        moved += other.shape.parents.tolist() != tree.shape.parents.tolist()
        logits = torch.from_numpy(np.log(laws[tree.tokens]) + generator.normal(size=(41, VOCABULARY)))
        one, two = verifier.verify(context, tree, logits), verifier.verify(context, other, logits[list(rows)])
        assert tree.kinds[1] == NodeKind.DRAWN
        assert one.accepted == tuple(rows[row] for row in two.accepted)
        assert one.bonus == two.bonus
        accepted += len(one.accepted)
    assert moved > 20
    assert accepted > 20


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
