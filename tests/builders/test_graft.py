"""Grafts by hand: the anchors of phrases, shared beginnings, and limits."""

import numpy as np
import pytest
from helpers.contracts import contract_of

from specexp.builders import Chain, DySpecGreedy, DySpecThreshold, Graft, KConfig, SpecInfer
from specexp.builders.graft import grafted
from specexp.core.dialogue import Candidates, Plan, Request
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.testing.builders import DrawingTreeBuilderContract, TreeBuilderContract
from specexp.testing.fakes import result_of

pytestmark = pytest.mark.unit

TestGraft = contract_of(TreeBuilderContract, lambda: Graft(Chain(4)))
TestOfDrawnCandidates = contract_of(
    DrawingTreeBuilderContract,
    lambda: Graft(KConfig([2, 2], candidates="drawn"), num_anchors=2, phrases_per_anchor=2, phrase_length=3),
)
TestOfDrawsWithReplacement = contract_of(DrawingTreeBuilderContract, lambda: Graft(SpecInfer([3, 2]), num_anchors=1))
TestOfADynamicTree = contract_of(
    DrawingTreeBuilderContract, lambda: Graft(DySpecGreedy(9), phrases_per_anchor=1, phrase_length=2)
)
TestOfADynamicTreeOfTopCandidates = contract_of(
    TreeBuilderContract, lambda: Graft(DySpecThreshold(0.1, 8, candidates="top-k"), num_anchors=4)
)


def drafted(tokens, parents, **known):
    """A tree of these rows, siblings ranked in row order."""
    ranks = [-1] + [parents[1:row].count(parents[row]) for row in range(1, len(parents))]
    return TokenTree(TreeShape(parents, ranks), np.array(tokens), **known)


def build(builder, candidates, phrases, plan=None):
    """Drive a builder with one candidate, and phrases, after every token; return the tree and its phrase requests."""
    requests = []

    def answer(request):
        rows = request.tokens[request.rows].tolist()
        if request.length == 1:
            return Candidates(np.array([[candidates.get(token, -1)] for token in rows]))
        requests.append(request)
        found = np.full((len(rows), request.k, request.length), -1)
        for number, token in enumerate(rows):
            for place, phrase in enumerate(phrases.get(token, [])):
                found[number, place, : len(phrase)] = phrase
        return Candidates(found)

    return result_of(builder.build(0, plan or Plan()), answer), requests


COUNTING = {token: token + 1 for token in range(9)}
PHRASES = {token: [(20 + token, 30 + token), (40 + token,)] for token in range(9)}


def paths(tree):
    return [tuple(tree.tokens[list(tree.shape.path(row))].tolist()) for row in range(1, tree.tokens.size)]


def test_phrases_are_below_the_last_drafts():
    tree, (request,) = build(Graft(Chain(4), num_anchors=2, phrases_per_anchor=2), COUNTING, PHRASES)
    assert request.rows.tolist() == [4, 3]
    assert (request.k, request.length) == (2, 5)
    assert paths(tree)[4:] == [
        (1, 2, 3, 4, 24),
        (1, 2, 3, 4, 24, 34),
        (1, 2, 3, 4, 44),
        (1, 2, 3, 23),
        (1, 2, 3, 23, 33),
        (1, 2, 3, 43),
    ]
    assert tree.shape.ranks.tolist() == [-1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 2]
    assert tree.grafted.tolist() == [False] * 5 + [True] * 6


@pytest.mark.parametrize(
    ("known", "anchors"), [({}, [0]), ({0: 1}, [1, 0]), ({0: 1, 1: 2}, [2, 1, 0]), (COUNTING, [4, 3, 2])]
)
def test_with_fewer_drafts_the_root_is_an_anchor(known, anchors):
    _, (request,) = build(Graft(Chain(4)), known, PHRASES)
    assert request.rows.tolist() == anchors


def test_in_a_tree_the_anchors_are_on_its_most_probable_path():
    class Fixed(Chain):
        def build(self, root, plan):
            yield Request(np.array([0]), np.array([-1]), np.array([-1]), np.array([0]), 1)
            log_probs = np.log([1, 0.3, 0.7, 0.9, 0.2, 0.6]).astype(np.float32)
            return drafted([0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 2], log_probs=log_probs)

    tree, (request,) = build(Graft(Fixed(4), num_anchors=2, phrases_per_anchor=1), {}, {5: [(8, 9)]})
    assert request.rows.tolist() == [5, 2]
    assert np.isnan(tree.log_probs).tolist() == [False] * 6 + [True] * 2
    assert tree.log_probs.dtype == np.float32


def test_nodes_of_the_tree_are_not_repeated():
    """Below 0 1 2: a phrase along the draft continues after its end, and phrases share their beginnings."""
    tree = grafted(
        drafted([0, 1, 2], [-1, 0, 1]),
        [(0, [1, 2, 7]), (1, [2, 8, 9]), (1, [2, 8, 6]), (0, [1, 2]), (2, [7, -1, 5])],
        room=9,
    )
    assert paths(tree) == [(1,), (1, 2), (1, 2, 7), (1, 2, 8), (1, 2, 8, 9), (1, 2, 8, 6)]
    assert tree.shape.ranks.tolist() == [-1, 0, 0, 0, 1, 0, 1]


def test_phrases_that_add_nothing_leave_the_tree_alone():
    tree = drafted([0, 1, 2], [-1, 0, 1])
    assert grafted(tree, [(0, [1, 2]), (1, [2]), (2, [-1])], room=9) is tree


def test_drawn_nodes_keep_their_place_before_grafts():
    """Their distributions and draws name the same rows; the values of a dynamic tree hold no graft."""
    q, draws = {0: np.full(9, 1 / 9, dtype=np.float32)}, {0: (2, 1, 2)}
    kinds = np.full(3, NodeKind.DRAWN_WITH_REPLACEMENT, dtype=np.int8)
    tree = drafted([0, 1, 2], [-1, 0, 0], kinds=kinds, q=q, draws=draws, values=np.array([1.0, 0.5, 0.2]))
    found = grafted(tree, [(0, [5]), (1, [6])], room=9)
    assert found.draw_order(0) == (2, 1, 2, 3)
    assert [found.kind(row) for row in range(1, 5)] == [NodeKind.DRAWN_WITH_REPLACEMENT] * 2 + [NodeKind.POINT_MASS] * 2
    assert found.q is q
    assert found.values.tolist() == [1.0, 0.5, 0.2, 0.0, 0.0]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(max_depth=0), []),
        (Plan(max_depth=4), [(1, 2, 3, 23), (1, 2, 3, 43), (1, 2, 22), (1, 2, 22, 32), (1, 2, 42)]),
        (Plan(max_depth=2), [(1, 21), (1, 41), (20,), (20, 30), (40,)]),
        (Plan(max_nodes=4), []),
        (Plan(max_nodes=6), [(1, 2, 3, 4, 24), (1, 2, 3, 4, 24, 34)]),
    ],
    ids=str,
)
def test_grafts_keep_to_the_plan(plan, expected):
    tree, _ = build(Graft(Chain(4)), COUNTING, PHRASES, plan)
    flags = np.zeros(tree.tokens.size, bool) if tree.grafted is None else tree.grafted
    assert [path for path, graft in zip(paths(tree), flags[1:], strict=True) if graft] == expected


def test_the_cached_data_of_a_longer_shape_is_right():
    tree, _ = build(Graft(KConfig([2, 2])), COUNTING, PHRASES)
    again = TreeShape(tree.shape.parents, tree.shape.ranks)
    assert tree.shape.depths.tolist() == again.depths.tolist()
    assert tree.shape.children == again.children
    assert (tree.shape.ancestor_mask == again.ancestor_mask).all()
