"""Static trees keep the contract, and the families reach the forms they promise."""

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.drawn_shapes import shapes as any_shapes
from hypothesis import given, strategies as st

from specexp.artifacts import value_of
from specexp.bench.observers import AcceptanceCounter
from specexp.builders import Chain, FittedTree, ParametricTree, StaticTree, TokenRecyclingTree
from specexp.builders.static_tree import FixedShape
from specexp.builders.tree_search import most_accepted_paths
from specexp.core.context import Context
from specexp.core.dialogue import Plan
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.testing.builders import TreeBuilderContract, grow

TestStaticTree = contract_of(TreeBuilderContract, lambda: StaticTree([[0], [2], [0, 1], [0, 0], [2, 0], [0, 0, 3]]))
TestChain = contract_of(TreeBuilderContract, lambda: Chain(5))
TestTokenRecyclingTree = contract_of(TreeBuilderContract, lambda: TokenRecyclingTree())
TestParametricTree = contract_of(TreeBuilderContract, lambda: ParametricTree(nodes=20, depth=5))
TestFittedTree = contract_of(
    TreeBuilderContract, lambda: FittedTree({(0,): 90, (0, 0): 40, (1,): 30, (0, 2): 9, (0, 0, 0): 8}, nodes=4)
)


def test_a_missing_candidate_leaves_out_its_node_and_all_below():
    answers = {(10,): [20], (10, 20): [30, 31]}
    tree = grow(StaticTree([[0], [1], [0, 1], [1, 0], [1, 0, 0]]), lambda path: answers.get(path, [99]), root=10)
    assert tree.tokens.tolist() == [10, 20, 31]
    assert tree.shape.rank_paths == ((), (0,), (0, 1))


def test_a_plan_cuts_breadth_first():
    tree = grow(TokenRecyclingTree(), lambda path: range(8), Plan(max_nodes=10))
    assert np.bincount(tree.shape.depths).tolist() == [1, 8, 2]


def test_a_static_tree_needs_a_path():
    with pytest.raises(ValueError, match="StaticTree must have at least one rank path"):
        StaticTree([])


def test_the_parametric_family_spans_chain_to_bush():
    assert ParametricTree(nodes=5, depth=5, rank_decay=8.0).rank_paths == Chain(5).rank_paths
    bush = ParametricTree(nodes=6, depth=5, rank_decay=0.0, depth_decay=0.01, width=6)
    assert bush.rank_paths == [[rank] for rank in range(6)]
    between = ParametricTree(nodes=12, depth=5)
    assert 1 < between.shape.max_depth <= 5
    assert between.max_candidates > 1


def test_the_parametric_tree_keeps_the_best_scores():
    arguments = {"depth": 4, "rank_decay": 1.3, "depth_decay": 0.7, "width": 4}
    everything = ParametricTree(nodes=4096, **arguments).rank_paths
    assert len(everything) == 4 + 16 + 64 + 256

    def score(path):
        return np.prod([0.7 * (rank + 1) ** -1.3 for rank in path])

    kept = ParametricTree(nodes=25, **arguments).rank_paths
    dropped = [path for path in everything if path not in kept]
    assert min(map(score, kept)) >= max(map(score, dropped)) - 1e-12


def test_a_fitted_tree_takes_the_most_accepted_paths_which_are_closed():
    counts = {(0,): 90, (0, 0): 40, (1,): 30, (0, 2): 9, (0, 0, 0): 9, (2,): 9}
    assert most_accepted_paths(counts, nodes=3, depth=8) == [[0], [0, 0], [1]]
    assert most_accepted_paths(counts, nodes=4, depth=8)[-1] == [2]  # a tie goes to the shorter
    assert most_accepted_paths(counts, nodes=5, depth=8)[-1] == [0, 2]
    assert most_accepted_paths(counts, nodes=9, depth=1) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("step_ms", "nodes"),
    [
        ({2: 1.0, 5: 1.0}, 4),  # rows are free: 1.9, 2.3, 2.6 and 2.7 tokens
        ({2: 1.0, 5: 4.0}, 1),  # every row costs as much as the first: 1.9 tokens / ms at once
        ({2: 10.0, 5: 13.0}, 3),  # 1.9/10, 2.3/11, 2.6/12 and 2.7/13
        ({2: 1.0, 4: 1.0}, 3),  # no tree has more rows than were timed
    ],
)
def test_a_fitted_tree_has_the_nodes_with_most_tokens_per_millisecond(step_ms, nodes):
    counts = {(): 100, (0,): 90, (0, 0): 40, (1,): 30, (0, 1): 10}
    assert FittedTree(counts, nodes=None, step_ms=step_ms).max_nodes == nodes


def test_a_tree_is_fitted_to_times_only_with_times_and_steps():
    for counts, step_ms in (({(0,): 9}, {2: 1.0}), ({(): 9, (0,): 9}, None)):
        with pytest.raises(ValueError, match="must have nodes, or step_ms and the count of steps"):
            FittedTree(counts, nodes=None, step_ms=step_ms)


def test_acceptances_are_counted_by_rank_path(tmp_path):
    counter = AcceptanceCounter()
    tree = TokenTree(TreeShape.from_rank_paths([[0], [1], [1, 0]]), np.array([1, 2, 3, 4]))
    for accepted in ((), (2,), (2, 3)):
        counter.observe(Outcome(Context([1]), tree, None, accepted, (*accepted, 9)))
    assert counter.steps == 3
    assert counter.drafted == {(0,): 3, (1,): 3, (1, 0): 3}
    counter.save(tmp_path / "acceptance_counts.json")
    counts = value_of("acceptance-counts", str(tmp_path / "acceptance_counts.json"))
    assert counts == {(): 3, (1,): 2, (1, 0): 1}
    assert FittedTree(counts, nodes=1).rank_paths == [[1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, r"acceptance_counts\.json") for text in ("", "[]", "3", '{"a": 1}', '{"0": "x"}')),
        ('{"": 3}', "hold no accepted path"),
        ("{}", "hold no accepted path"),
        ('{"0": 0}', "hold no accepted path"),
        ('{"1,0": 4}', "has no parent"),
    ],
)
def test_counts_that_make_no_tree_are_refused(tmp_path, text, message):
    path = tmp_path / "acceptance_counts.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        FittedTree(value_of("acceptance-counts", str(path)))


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
