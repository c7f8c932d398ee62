"""Sequoia's trees have the most expected tokens, or the most speed, of all trees."""

import heapq
import json
from functools import cache
from math import prod

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.examples import examples
from hypothesis import example, given, reject, strategies as st

from specexp.base.checked import arguments_of
from specexp.builders import Sequoia
from specexp.config.check import Checker
from specexp.config.layers import ConfigError
from specexp.config.schema import Experiment
from specexp.core.tree import NodeKind
from specexp.testing.builders import DrawingTreeBuilderContract, TreeBuilderContract, grow

pytestmark = pytest.mark.unit

VECTOR = [0.5, 0.2, 0.1, 0.05, 0.15]


TestSequoia = contract_of(DrawingTreeBuilderContract, lambda: Sequoia(budget=12, acceptance=VECTOR))
TestSequoiaOfTopCandidates = contract_of(TreeBuilderContract, lambda: Sequoia(VECTOR, 12, candidates="top-k"))


@cache
def all_trees(nodes, width, depth=None):
    """Return all trees of this many nodes with children at the first positions, as sets of rank paths."""
    if nodes == 0:
        return frozenset({frozenset()})
    found = set()
    for smaller in all_trees(nodes - 1, width, depth):
        for parent in (*smaller, ()):
            rank = sum(path[:-1] == parent for path in smaller if path)
            if rank < width and (depth is None or len(parent) < depth):
                found.add(smaller | {(*parent, rank)})
    return frozenset(found)


def tokens_per_step(paths, acceptance):
    """Return the bonus token plus, for every node, the probability that the walk reaches it."""
    return 1 + sum(prod(acceptance[rank] for rank in path) for path in paths)


def worth(tree, acceptance):
    return tokens_per_step(tree.rank_paths, acceptance)


@st.composite
def vectors(draw, width=4):
    """Vectors that accept something, unordered, with and without zeros."""
    weights = draw(st.lists(st.floats(0, 1), min_size=1, max_size=width).filter(lambda values: max(values) > 0.01))
    none = draw(st.floats(0, 1))
    total = sum(weights) + none
    return [weight / total for weight in (*weights, none)]


@examples(120)
@given(vectors(), st.integers(1, 6), st.none() | st.integers(1, 3))
@example([0.0, 0.9, 0.1], 2, None)  # the first child is there only to let the second be
@example([0.05, 0.05, 0.8, 0.1], 6, None)  # taking the best products first ends in a chain of first children
@example([1.0, 0.0], 6, 2)
def test_no_tree_is_worth_more(acceptance, budget, depth):
    width = len(acceptance) - 1
    if max(acceptance[:-1][:budget]) < 1e-12:
        reject()  # refused, see below
    trees = [tree for nodes in range(budget + 1) for tree in all_trees(nodes, width, depth)]
    best = max(tokens_per_step(tree, acceptance) for tree in trees)
    if best == 1:  # no child that is ever accepted fits
        reject()
    tree = Sequoia(acceptance, budget, max_depth=depth)
    assert worth(tree, acceptance) == pytest.approx(best, rel=1e-12)
    assert tree.expected_tokens_per_step == pytest.approx(best, rel=1e-12)
    assert frozenset(map(tuple, tree.rank_paths)) in trees


def greedy_tree(acceptance, nodes):
    """The largest path products, which is right where no position is likelier than an earlier one."""
    heap, found = [(-acceptance[0], (0,))], []
    while len(found) < nodes:
        cost, path = heapq.heappop(heap)
        found.append(path)
        heapq.heappush(heap, (cost * acceptance[0], (*path, 0)))
        if path[-1] + 1 < len(acceptance) - 1:
            heapq.heappush(heap, (cost / acceptance[path[-1]] * acceptance[path[-1] + 1], (*path[:-1], path[-1] + 1)))
    return found


def test_nodes_that_are_never_accepted_are_left_out():
    assert Sequoia(budget=50, acceptance=[1.0, 0.0, 0.0], max_depth=3).rank_paths == [[0], [0, 0], [0, 0, 0]]
    assert Sequoia(budget=50, acceptance=[0.5, 0.25, 0.0, 0.25], max_depth=2).max_nodes == 2 + 4


def test_a_full_tree_takes_every_place_within_the_depth():
    tree = Sequoia(budget=500, acceptance=[0.5, 0.2, 0.3], max_depth=3)
    assert tree.max_nodes == 2 + 4 + 8
    assert tree.expected_tokens_per_step == pytest.approx(1 + 0.7 + 0.7**2 + 0.7**3)


def test_the_papers_largest_trees_are_found():
    acceptance = [0.55 * 0.6**rank * 0.7 for rank in range(16)]
    tree = Sequoia(budget=768, acceptance=[*acceptance, 1 - sum(acceptance)], max_depth=24)
    assert tree.max_nodes == 768
    assert worth(tree, acceptance) == pytest.approx(tree.expected_tokens_per_step)
    assert worth(tree, acceptance) == pytest.approx(tokens_per_step(greedy_tree([*acceptance, 0], 768), acceptance))


def test_the_first_children_are_drawn_unless_the_best_are_requested():
    drawn, ranked = Sequoia(acceptance=VECTOR), Sequoia(acceptance=VECTOR, candidates="top-k")
    assert drawn.kind is NodeKind.DRAWN
    assert ranked.kind is NodeKind.POINT_MASS
    assert drawn.rank_paths == ranked.rank_paths
    assert grow(ranked, lambda path: range(8)).num_nodes == 64


@examples(40)
@given(
    vectors(width=3),
    st.integers(3, 6),
    st.lists(st.floats(0.5, 8), min_size=7, max_size=7),
    st.floats(0, 3),
    st.integers(1, 4),
)
def test_no_tree_is_faster(acceptance, budget, milliseconds, draft_ms, max_depth):
    """Whatever the times, also where a larger pass takes less."""
    if not any(acceptance[:3]):
        reject()
    target_ms = [[n + 1, ms] for n, ms in enumerate(milliseconds)]
    tree = Sequoia(acceptance, budget, max_depth=max_depth, target_ms=target_ms, draft_ms=draft_ms)

    def speedup(paths):
        passes = milliseconds[len(paths)] + draft_ms * max(map(len, paths))
        return tokens_per_step(paths, acceptance) * milliseconds[0] / passes

    chosen = speedup([tuple(path) for path in tree.rank_paths])
    assert chosen == pytest.approx(tree.predicted_speedup, rel=1e-9)
    worthwhile = [  # without nodes that are never accepted, which only a pass faster for its size could want
        paths
        for nodes in range(1, budget + 1)
        for paths in all_trees(nodes, len(acceptance) - 1, max_depth)
        if all(prod(acceptance[rank] for rank in path) > 1e-12 for path in paths)
    ]
    assert chosen >= max(map(speedup, worthwhile), default=0) * (1 - 1e-9)


def test_a_tree_fills_the_bucket_that_is_paid_for():
    """Rows cost 10 ms up to 8 and 11 ms up to 64: with all nodes likely to pay, none of 64 rows is left empty."""
    likely, times = [0.5, 0.2, 0.1, 0.2], [[1, 10], [8, 10], [64, 11]]
    assert Sequoia(likely, 63, target_ms=times, draft_ms=0, buckets=True).max_nodes == 63
    assert Sequoia(likely, 63, target_ms=[[1, 10], [8, 10], [64, 40]], draft_ms=0, buckets=True).max_nodes == 7


def test_times_between_two_measured_ones_are_interpolated():
    """A chain of n, of value (1 - 0.8 ** (n + 1)) / 0.2, in passes of 10 + n ms and n ms."""
    chain = Sequoia([0.8, 0.2], 8, target_ms=[[1, 10], [3, 12], [9, 18]], draft_ms=1)
    speedups = [(1 - 0.8 ** (n + 1)) / 0.2 * 10 / (10 + n + n) for n in range(1, 9)]
    assert chain.max_nodes == 1 + int(np.argmax(speedups)) == 4
    assert chain.predicted_speedup == pytest.approx(max(speedups))


def configured(**arguments):
    """As a configuration makes it."""
    annotation = arguments_of(Experiment)["builder"].annotation
    checker, spec = Checker(lambda key: "x.yaml"), {"class_path": "Sequoia", "init_args": arguments}
    return checker.build(checker.value(spec, annotation, ("builder",)), annotation, ("builder",))


def test_a_file_holds_the_vector(tmp_path):
    file = tmp_path / "acceptance.json"
    file.write_text(json.dumps({"acceptance": VECTOR, "arm": "sequoia"}))
    assert configured(acceptance=str(file), budget=20).rank_paths == Sequoia(VECTOR, 20).rank_paths


def times(pairs):
    return {"acceptance": VECTOR, "target_ms": pairs, "draft_ms": 1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"acceptance": []}, "acceptance must have at least 2 numbers"),
        ({"acceptance": [0.5, 0.3]}, r"acceptance must sum to 1 \(within 0\.001\), got 0\.8"),
        ({"acceptance": [1.2, -0.2]}, r"acceptance\.0 must be <= 1, got 1\.2"),
        ({"acceptance": [0.5, float("nan"), 0.5]}, r"acceptance\.1 must be a finite number, got nan"),
        ({"acceptance": [0.0, 0.0, 1.0]}, "must be at least 1e-12 for one of the first 2 children"),
        ({"acceptance": VECTOR, "draft_ms": 1.0}, "must have both target_ms and draft_ms"),
        (times([]), r"target_ms must cover 1 to 65 tokens \(budget \+ 1\), got no tokens"),
        (times([[1, 10], [9], [65, 20]]), r"target_ms\.1: List should have at least 2 items"),
        (times([[1, 0], [65, 20]]), r"target_ms\.0\.1 must be > 0, got 0"),
        (times([[1, 10], [9, 11], [9, 12], [65, 20]]), "target_ms: tokens must increase"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message) as refused:
        Sequoia(**arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ('{"acceptance": [0.5', "is not JSON"),
        ("[0.5, 0.5]", "must be an object, got"),
        ('{"acceptance": [0.5, "0.5"]}', "acceptance.1 must be a number, got"),
    ],
)
def test_a_file_without_a_vector_is_named(tmp_path, text, message):
    file = tmp_path / "measured.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=rf"builder\.init_args\.acceptance: .*measured\.json.* {message}"):
        configured(acceptance=str(file))
