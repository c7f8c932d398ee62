"""Fixed shapes filled with draws: with and without replacement."""

import re

import numpy as np
import pytest
from helpers.contracts import contract_of

from specexp.builders import Chain, KConfig, SpecInfer, StaticTree
from specexp.core.dialogue import Candidates, Plan
from specexp.core.tree import NO_CANDIDATE, NodeKind
from specexp.testing.builders import DrawingTreeBuilderContract, TreeBuilderContract, grow
from specexp.testing.fakes import result_of

pytestmark = pytest.mark.unit

TestDrawnStaticTree = contract_of(
    DrawingTreeBuilderContract, lambda: StaticTree([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]], candidates="drawn")
)
TestDrawnChain = contract_of(DrawingTreeBuilderContract, lambda: Chain(4, candidates="drawn"))
TestKConfig = contract_of(TreeBuilderContract, lambda: KConfig([3, 2, 1]))
TestDrawnKConfig = contract_of(DrawingTreeBuilderContract, lambda: KConfig([3, 2, 1], candidates="drawn"))
TestSpecInfer = contract_of(DrawingTreeBuilderContract, lambda: SpecInfer([3, 2, 1]))


def filled(builder, draws, q, root=0, plan=None):
    """The tree a builder makes of these draws: ``draws[path]`` are the tokens drawn after a path, in order."""

    def answer(request):
        tokens = np.full((request.rows.size, request.k), NO_CANDIDATE)
        for index, row in enumerate(request.rows.tolist()):
            drawn = draws.get(request.path_tokens(row), [])[: request.k]
            tokens[index, : len(drawn)] = drawn
        probabilities = np.tile(np.array(q, dtype=np.float32), (request.rows.size, 1))
        log_probs = np.where(tokens >= 0, np.log(probabilities[0])[tokens], -np.inf).astype(np.float32)
        return Candidates(tokens, log_probs, probabilities)

    return result_of(builder.build(root, plan or Plan()), answer)


Q = [0.1, 0.2, 0.3, 0.4]


def test_a_token_drawn_twice_is_one_node_below_which_both_draws_go_on():
    tree = filled(SpecInfer([3, 2]), {(): [3, 3, 1], (3,): [2, 2, 0, 2], (1,): [0, 2]}, Q)
    assert tree.tokens.tolist() == [0, 3, 1, 2, 0, 0, 2]
    assert tree.shape.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert tree.draw_order(0) == (1, 1, 2)
    assert tree.draw_order(1) == (3, 3, 4, 3)
    assert tree.draw_order(2) == (5, 6)
    assert sorted(tree.q) == [0, 1, 2]
    assert [tree.kind(row) for row in range(1, 7)] == [NodeKind.DRAWN_WITH_REPLACEMENT] * 6
    assert np.exp(tree.log_probs[1:]) == pytest.approx([0.4, 0.2, 0.3, 0.1, 0.1, 0.3])


def test_equal_sequences_are_one_path_of_as_many_draws():
    tree = filled(SpecInfer([4, 1, 1]), {(): [3] * 4, (3,): [2] * 4, (3, 2): [1, 1, 1, 0]}, Q)
    assert tree.tokens.tolist() == [0, 3, 2, 1, 0]
    assert [tree.draw_order(row) for row in range(3)] == [(1,) * 4, (2,) * 4, (3, 3, 3, 4)]


def test_a_node_keeps_the_rank_of_its_first_draw():
    tree = filled(SpecInfer([4]), {(): [2, 2, 2, 0]}, Q)
    assert tree.shape.rank_paths == ((), (0,), (3,))
    assert tree.draw_order(0) == (1, 1, 1, 2)


def test_a_plan_cuts_the_draws_before_they_are_merged():
    """Of root's three draws 3, 1, 3 the budget of two leaves the first two."""
    tree = filled(SpecInfer([3, 2]), {(): [3, 1, 3], (3,): [2, 2], (1,): [0, 2]}, Q, plan=Plan(max_nodes=2))
    assert tree.tokens.tolist() == [0, 3, 1]
    assert tree.draw_order(0) == (1, 2)


def test_a_distribution_used_up_leaves_out_the_rest():
    tree = filled(KConfig([3, 1], candidates="drawn"), {(): [2, 1], (2,): [3]}, Q)
    assert tree.tokens.tolist() == [0, 2, 1, 3]
    assert sorted(tree.q) == [0, 1, 2]  # row 2 had no draw left
    assert tree.draw_order(0) == (1, 2)


def test_k_configs_count_nodes_by_depth():
    tree = grow(KConfig([2, 2, 1]), lambda path: [1, 2])
    assert np.bincount(tree.shape.depths).tolist() == [1, 2, 4, 4]
    assert SpecInfer([4, 4, 2, 1]).max_nodes == 4 + 16 + 32 + 32


@pytest.mark.parametrize(
    ("paths", "missing"),
    [([[1]], "[0]"), ([[0], [2]], "[1]"), ([[0], [1], [1, 1], [1, 2]], "[1, 0]"), ([[0], [0, 3]], "[0, 2]")],
)
def test_a_draw_is_never_left_out(paths, missing):
    """To drop an elder sibling after it was drawn would change the distribution of what follows."""
    with pytest.raises(ValueError, match=f"elder sibling {re.escape(missing)} if candidates are drawn"):
        StaticTree(paths, candidates="drawn")
    assert StaticTree(paths).max_nodes == len(paths)  # the best candidates may be picked freely
